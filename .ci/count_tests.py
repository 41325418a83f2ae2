#!/usr/bin/env python3
"""Counts test cases: count_tests.py FOLDER... [--extra PASSED FAILED]

Adds up what `meson test` logged in each build folder and prints "N passed, N failed". A doctest program counts with
its test cases, any other test as one. Exit status 1 when something failed, or when nothing ran.
"""
import argparse
import json
import pathlib
import re
import sys

SUMMARY = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")


def count(test):
    """(passed, failed) of one line of Meson's log."""
    good = test["result"] in ("OK", "EXPECTEDFAIL")
    if test["result"] == "SKIP":
        return 0, 0
    cases = SUMMARY.findall(re.sub(r"\x1b\[[0-9;]*m", "", test.get("stdout") or ""))
    if not cases:
        return (1, 0) if good else (0, 1)
    passed, failed = (sum(int(case[i]) for case in cases) for i in (1, 2))
    # A sanitizer's report or a crash at exit fails a program whose cases all passed.
    return passed, failed if good or failed else 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--extra", nargs=2, type=int, default=(0, 0), metavar=("PASSED", "FAILED"))
    arguments = parser.parse_args()
    passed, failed = arguments.extra
    for folder in arguments.folders:
        logs = sorted((folder / "meson-logs").glob("testlog*.json"))
        if not logs:
            print(f"{folder}: no test log", file=sys.stderr)
            failed += 1
        for log in logs:
            for line in log.read_text(encoding="utf-8").splitlines():
                good, bad = count(json.loads(line))
                passed += good
                failed += bad
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or passed == 0 else 0)


if __name__ == "__main__":
    main()
