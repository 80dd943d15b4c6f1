#!/usr/bin/env bash
# Runs the README's commands as a reader would.
#
# Every fenced block that follows a line `<!-- runs -->` is run by bash, in order, from the project's root and in one
# shell, so that a gateway started in one block serves the next. Everything the blocks start is stopped at the end.
# A block that follows `<!-- runs: expect TEXT -->` must also print TEXT.
set -uo pipefail
cd "$(dirname "$0")/.."

if [ ! -f README.md ]; then
    echo "README.md is missing" >&2
    exit 1
fi

python3 - <<'PYTHON'
import os, re, signal, subprocess, sys

LIMIT = 1200  # seconds for one block; the first builds the release programs
text = open("README.md").read()
blocks = re.findall(r"<!-- runs(?:: expect (.+?))? -->\s*```\w*\n(.*?)```", text, re.S)
if not blocks:
    sys.exit("README.md marks no command with <!-- runs -->")

def too_slow(*_):
    raise TimeoutError(f"a block took more than {LIMIT} s")


signal.signal(signal.SIGALRM, too_slow)
# One shell for all blocks. A sentinel after each tells that it ended, and how.
shell = subprocess.Popen(
    ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    start_new_session=True,
)
failed = 0
try:
    for number, (expected, block) in enumerate(blocks, 1):
        print(f"[{number}/{len(blocks)}] {block.strip()}", flush=True)
        signal.alarm(LIMIT)
        # On a line of its own, also after output that does not end its last one.
        shell.stdin.write(block + f"\nprintf '\\n@@{number} %s\\n' $?\n")
        shell.stdin.flush()
        output = []
        for line in shell.stdout:
            if line.startswith(f"@@{number} "):
                break
            output.append(line)
        else:
            sys.exit("the shell ended early")
        signal.alarm(0)
        code = int(line.split()[1])
        sys.stdout.write("".join(f"    {line}" for line in output[-25:]))
        missing = expected and expected not in "".join(output)
        if code or missing:
            failed += 1
            print(f"    FAILED: exit code {code}" + (f", {expected!r} was not printed" if missing else ""))
finally:
    os.killpg(shell.pid, signal.SIGTERM)
print(f"{len(blocks) - failed} passed, {failed} failed")
sys.exit(failed > 0)
PYTHON
