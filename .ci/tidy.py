#!/usr/bin/env python3
"""clang-tidy over the sources of a build:  tidy.py BUILD FOLDER...   (from the project's folder)

The sources of one folder are read as one, so that the headers that they share are looked at once: a third of the time.
Prints each finding once; fails when there is one.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# Of no use on sources that are included: the inclusion itself, and a rule for headers.
OFF = "-bugprone-suspicious-include,-google-global-names-in-headers"
FINDING = re.compile(r"^.*?:\d+:\d+: (?:warning|error): .*", re.MULTILINE)


def main(build, folders):
    root = pathlib.Path.cwd()
    sources = collections.defaultdict(list)
    commands = {}
    for entry in json.loads((root / build / "compile_commands.json").read_text()):
        source = pathlib.Path(os.path.normpath(os.path.join(entry["directory"], entry["file"])))
        if source.suffix == ".cc" and source.is_relative_to(root) and source.relative_to(root).parts[0] in folders:
            sources[source.parent].append(source)
            commands[source.parent] = entry
    with tempfile.TemporaryDirectory() as scratch:
        database = []
        for folder, files in sources.items():
            whole = pathlib.Path(scratch, "_".join(folder.relative_to(root).parts) + ".cc")
            whole.write_text("".join(f'#include "{file}"\n' for file in sorted(files)))
            entry = commands[folder]
            arguments = [str(whole) if word == entry["file"] else word for word in shlex.split(entry["command"])]
            if os.path.basename(arguments[0]) == "ccache":
                del arguments[0]
            database.append({"directory": entry["directory"], "file": str(whole), "arguments": arguments})
        pathlib.Path(scratch, "compile_commands.json").write_text(json.dumps(database))

        def tidy(entry):
            return subprocess.run(
                ["clang-tidy-14", "-quiet", "-p", scratch, f"-config-file={root}/.clang-tidy", f"-checks={OFF}",
                 "--extra-arg=-Xclang", "--extra-arg=-analyzer-opt-analyze-headers",
                 f"-header-filter={root}/({build}/\\.\\./)?(include/packalloc|{'|'.join(folders)})/", entry["file"]],
                capture_output=True, text=True)

        # The longest first, so that no one core is left with it at the end.
        database.sort(key=lambda entry: -len(pathlib.Path(entry["file"]).read_text()))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(tidy, database))
    findings = {finding for run in runs for finding in FINDING.findall(run.stdout)}
    failed = [run for run in runs if run.returncode != 0]
    print("\n".join(sorted(findings)) or "\n".join(run.stderr for run in failed), file=sys.stderr)
    return 1 if failed or findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
