"""The cost of importing: no torch for the bounds, no optional packages for the core, fast."""

import subprocess
import sys
import textwrap

OPTIONAL = (
    *("sklearn", "joblib", "matplotlib", "mpmath", "pandas", "plotly", "ray", "fastapi"),
    *("uvicorn", "pyautoattack", "autoattack", "torchvision", "timm", "hypothesis", "pytest"),
)


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_bounds_and_the_command_line_import_without_torch() -> None:
    answer = run("import sween.bounds, sween.cli, sys; assert 'torch' not in sys.modules")
    assert answer.returncode == 0, answer.stderr


def test_the_package_imports_quickly() -> None:
    script = (
        "import time; began = time.perf_counter(); import sween; print(time.perf_counter() - began)"
    )
    assert min(float(run(script).stdout) for _ in range(3)) < 0.3


def test_the_core_and_the_command_line_import_without_optional_parts() -> None:
    script = f"""
        import sys
        import torch, scipy, rich.progress, typer  # whatever these load for themselves is theirs

        optional = {OPTIONAL!r}

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in optional:
                    raise ImportError(f"{{name}} is blocked")

        before = set(sys.modules)
        sys.meta_path.insert(0, Blocker())
        import sween
        import sween.cli
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        assert not loaded & set(optional), loaded & set(optional)
        try:
            sween.load_dataset("digits")
        except sween.SweenError as error:
            print(error)
    """
    answer = run(script)
    assert answer.returncode == 0, answer.stderr
    assert "scikit-learn" in answer.stdout, "the blocker did not block"
