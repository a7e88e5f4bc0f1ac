"""Runs one file of Python's own tests natively and as a guest of KVM, and prints what became of each test as JSON.

Arguments: seconds that each may take, the pagetrail command, the name of the file, and tests of it (none: all).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

# What a test has of these did not simply pass.
NOT_PASSED = ("failure", "error", "skipped", "outcome")


def outcomes(path):
    """Each finished test by its name. One without a name has failed in a part, and others tell of that."""
    if not os.path.exists(path):
        return {}
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        if name := case.get("name"):
            found[name] = next((what for what in NOT_PASSED if case.find(what) is not None), "passed")
    return found


def run(before, seconds, file, tests):
    with tempfile.TemporaryDirectory() as directory:
        results = os.path.join(directory, "results.xml")
        log = os.path.join(directory, "log")
        only = [word for test in tests for word in ("-m", test)]
        # Not by --timeout: that is a thread of its own.
        command = [*before, sys.executable, "-m", "test", "-v", "--junit-xml", results, *only, file]
        with open(log, "wb") as output:
            child = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = child.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = None
        with open(log, errors="replace") as output:
            text = output.read()
        return {"status": status, "tests": outcomes(results), "log": text}


def main():
    seconds, pagetrail, file, *tests = sys.argv[1:]
    native = run([], int(seconds), file, tests)
    guest = run([pagetrail, "vm", "run", "--"], int(seconds), file, tests)
    json.dump({"native": native, "guest": guest}, sys.stdout)


main()
