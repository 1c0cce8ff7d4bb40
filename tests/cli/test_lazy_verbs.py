"""The command line lists and completes verbs without torch, and says what it cannot import."""

import subprocess
import sys

import pytest

from sween.cli.verbs import VERBS, command_of
from tests.cli.command import run_cli

WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("libtorch_cpu.so: cannot open shared object file")
sys.meta_path.insert(0, Missing())
from sween.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_says_what_a_verb_says_of_itself(verb: str) -> None:
    command = command_of(verb)
    assert command.name == verb
    assert command.help.partition("\n\n")[0] == VERBS[verb]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor", "--help"]])
def test_what_needs_no_torch_does_without(arguments: list[str]) -> None:
    answer = run_without_torch(*arguments)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == run_cli(*arguments).stdout


def test_a_verb_that_cannot_be_imported_is_one_line() -> None:
    answer = run_without_torch("certify", "model", "--all", "--out", "out")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("sween: error: sween certify cannot be loaded: ImportError: ")
    assert "libtorch_cpu.so" in answer.stderr
    assert answer.stderr.endswith("; see sween doctor\n")
    assert answer.stderr.count("\n") == 1


def test_an_unknown_verb_is_refused_without_torch() -> None:
    answer = run_without_torch("certfy")
    assert answer.returncode == 2
    assert answer.stderr.startswith("sween: error: No such command 'certfy'")
