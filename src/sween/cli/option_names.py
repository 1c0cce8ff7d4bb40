"""Errors and warnings name parameters of Python; the command line prints them as its options."""

import re
from typing import Any

_PARAMETER = re.compile(r"`([A-Za-z_.]+)(?:=([^`]*))?`")
_OPTION_OF = {
    "archs": "arch",
    "data": "data_root",
    "root": "data_root",
    "LogFormat.alpha": "log_alpha",
    "LogFormat.n": "log_n",
    "LogFormat.sigma": "log_sigma",
    "LogFormat.significant_digits": "log_digits",
    "LogFormat.start": "log_start",
    "LogFormat.votes": "log_votes",
}
"""Parameters whose options have a different name."""


def spell_options(message: str, verb: Any) -> str:
    """`data_root` as --data-root and `every=20` as --every 20, where the verb has that option.

    Args:
        message: of an error or a warning.
        verb: Typer's command; None for a message that belongs to none.
    """
    options: dict[str, tuple[str, str]] = {}
    for parameter in () if verb is None else verb.params:
        option = parameter.opts[0]
        if option.startswith("--"):
            spelled = option, (parameter.secondary_opts or parameter.opts)[0]
            options[parameter.name] = options[option[2:].replace("-", "_")] = spelled

    def spell(found: re.Match[str]) -> str:
        name, value = found.groups()
        name = _OPTION_OF.get(name, name)
        if name not in options:
            return found[0]
        option, negated = options[name]
        if value in (None, "True", "False"):
            return negated if value == "False" else option
        plain = value.strip("[]'")
        return f"{option} {plain}"

    return _PARAMETER.sub(spell, message)
