"""What importing costs: a laptop without accelerator libraries can declare, plan, read and forecast."""

import subprocess
import sys

from tests.ladder.examples import ROOT


def python(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_both_packages_loads_nothing_heavy():
    code = (
        "import sys, ladder, analysis, ladder.store, ladder.planning, ladder.recipe, ladder.tracking\n"
        "ladder.Store, ladder.plan, analysis.fit, analysis.forecast, analysis.Monitor\n"
        "heavy = {'jax', 'ray', 'wandb', 'matplotlib', 'optax', 'orbax'}\n"
        "print(*heavy & set(sys.modules))"
    )
    assert python(code) == ""


def test_every_submodule_can_be_imported_and_hides_no_public_name():
    code = (
        "import importlib, pkgutil, ladder, analysis\n"
        "for package in (ladder, analysis):\n"
        "    def failed(name): raise\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.', onerror=failed):\n"
        "        if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "assert callable(analysis.fit) and callable(analysis.forecast) and callable(ladder.plan)\n"
        "assert callable(ladder.store.provenance) and callable(ladder.load)\n"
        "for package in (ladder, analysis):\n"
        "    for name in package.__all__: getattr(package, name)\n"
    )
    python(code)
