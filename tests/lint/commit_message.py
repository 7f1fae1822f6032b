"""Checks commit messages: a subject in the imperative, an empty line, and a body that says why. Usage:

    python tests/lint/commit_message.py FILE      the message in a file, as git's hook commit-msg calls it
    python tests/lint/commit_message.py A..B      the commits of a range, without merges

It prints the faults, and fails if there are any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MOST = 72
# A subject that begins with a past tense, an -ing form or a third person is not in the imperative.
NOT_IMPERATIVE = re.compile(
    r"(?!embed|need|feed|speed|bring|string|address|pass|process|compress|focus)\w+(ed|ing|[^su]s)\b", re.I
)


def faults(message: str) -> list[str]:
    """Returns the faults of a message. Comments that git adds are ignored."""
    text = re.split(r"^# -+ >8 -+$", message, flags=re.M)[0]
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    subject, *rest = "\n".join(lines).strip().split("\n")
    if re.match(r"(Merge|Revert|fixup!|squash!) ", subject):
        return []
    first = re.sub(r"^[\w./-]+: ", "", subject)
    checks = {
        f"the subject has {len(subject)} characters, more than {MOST}": len(subject) > MOST,
        "the subject ends with a full stop": subject.endswith("."),
        "the subject does not begin with a verb in the imperative": bool(NOT_IMPERATIVE.match(first))
        or not first[:1].isalpha(),
        "an empty line must follow the subject": bool(rest) and bool(rest[0]),
        "the body does not say why": not any(rest),
    }
    return [fault for fault, holds in checks.items() if holds]


def messages(argument: str) -> list[str]:
    if ".." not in argument:
        return [Path(argument).read_text(encoding="utf-8")]
    command = ["git", "log", "--no-merges", "-z", "--format=%B", argument]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")


def main(argument: str) -> int:
    bad = 0
    for message in filter(str.strip, messages(argument)):
        for fault in faults(message):
            print(f"{message.strip().splitlines()[0][:90]}: {fault}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
