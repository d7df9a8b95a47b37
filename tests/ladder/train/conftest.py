"""Programs that these tests compile are kept for the session, away from the user's cache."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("compiled")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        yield
        jax.config.update("jax_compilation_cache_dir", None)
