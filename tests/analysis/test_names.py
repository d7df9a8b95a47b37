"""The public names, and what importing them does not load."""

import subprocess
import sys


def test_importing_analysis_loads_nothing_heavy():
    code = (
        "import sys, analysis\n"
        "[getattr(analysis, name) for name in analysis.__all__]\n"
        "print([m for m in ('jax', 'ray', 'wandb', 'matplotlib') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_names_stay_functions_after_every_submodule_is_imported():
    code = (
        "import importlib, pkgutil, analysis\n"
        "for m in pkgutil.iter_modules(analysis.__path__, 'analysis.'): importlib.import_module(m.name)\n"
        "print(all(callable(getattr(analysis, name)) for name in analysis.__all__))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "True", answer.stderr
