"""Runs the steps of the Dockerfile without a container engine: tests/examples/image.py [target/release, for dependencies that are built]

The build context is a copy of what .dockerignore leaves; each RUN is executed there by a shell. The bases are not
fetched: this machine's Rust stands for the first, its libc for the second.
"""

import fnmatch, json, os, re, shutil, socket, subprocess, sys, tempfile, time
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def instructions(text):
    """Yields each instruction with its argument, in one line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, argument = line.split(None, 1)
        yield name, argument.strip()


def is_ignored(path, patterns):
    """Returns whether .dockerignore hides this path: the last pattern that matches it, or a parent of it, decides."""
    ignored = False
    for pattern in patterns:
        keeps = pattern.startswith("!")
        names = [str(path), *map(str, path.parents)]
        if any(fnmatch.fnmatch(name, pattern.lstrip("!")) for name in names if name != "."):
            ignored = not keeps
    return ignored


def context(into):
    """Copies the files that git knows and .dockerignore leaves."""
    patterns = [line for line in Path(".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    for path in map(Path, files.stdout.splitlines()):
        if path.exists() and not is_ignored(path, patterns):
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, into / path)


def check_metadata(final):
    """Checks what the image says of itself."""
    cargo = Path("Cargo.toml").read_text()
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', final["LABEL"]))
    assert set(labels) >= {"title", "description", "version", "revision", "licenses", "documentation"}, labels
    assert labels["version"] == re.search(r'^version = "(.*)"', cargo, re.M)[1]
    assert labels["licenses"] == re.search(r'^license = "(.*)"', cargo, re.M)[1]
    assert labels["documentation"] == re.search(r'^documentation = "(.*)"', cargo, re.M)[1]
    assert labels["revision"] == "$COMMIT" and final["ARG"].startswith("COMMIT")
    # runAsNonRoot refuses a name.
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final["USER"]), final["USER"]


def check_health(lockgate, final):
    """Starts lockgate as the image does, and runs its health check."""
    flags = dict(re.findall(r"--(\S+?)=(\S+)", final["HEALTHCHECK"]))
    timeout = int(flags["timeout"].rstrip("s"))
    check = json.loads(re.search(r"CMD (\[.*\])", final["HEALTHCHECK"])[1])
    entrypoint = json.loads(final["ENTRYPOINT"])
    assert check[0] == entrypoint[0] == "lockgate"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKGATE_")}
    listen = dict([final["ENV"].split("=", 1)])["LOCKGATE_LISTEN"]
    with socket.socket() as free:
        free.bind((listen.split(":")[0], 0))
        environment["LOCKGATE_LISTEN"] = "%s:%d" % free.getsockname()
    def healthy():
        ended = subprocess.run([lockgate, *check[1:]], env=environment, capture_output=True, timeout=timeout)
        assert ended.returncode in (0, 1), ended
        return ended.returncode == 0
    assert not healthy()
    # No Redis is there; the instance serves all the same.
    environment["LOCKGATE_UPSTREAM"] = "redis://127.0.0.1:1"
    gate = subprocess.Popen([lockgate, *entrypoint[1:]], env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not healthy():
            assert time.monotonic() < deadline, "it never gets healthy"
    finally:
        gate.terminate()
    assert gate.wait() == 0 and not healthy()


def main():
    caches = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as work:
        run(Path(work), caches)
    print("the image can be built, and checks its health")


def run(work, caches):
    stages, names = [], {}
    for name, argument in instructions(Path("Dockerfile").read_text()):
        if name == "FROM":
            base, _, alias = argument.partition(" AS ")
            # A tag for people, a digest that never moves.
            assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base), base
            root = work / f"root{len(stages)}"
            root.mkdir()
            stage = {"root": root, "directory": root, "steps": []}
            stages.append(stage)
            names[alias] = stage
        elif name in ("WORKDIR", "COPY", "RUN"):
            stage["steps"].append((name, argument))
        else:
            assert name in ("ARG", "LABEL", "ENV", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT"), name
            stage[name] = argument
    final = stages[-1]
    check_metadata(final)
    context(work / "context")
    for stage in stages:
        for name, argument in stage["steps"]:
            if name == "WORKDIR":
                stage["directory"] = stage["root"] / argument.lstrip("/")
                stage["directory"].mkdir(parents=True)
            elif name == "COPY":
                copy(argument, stage, names, work)
            else:
                run_step(argument, stage, caches)
    lockgate = str(final["root"] / "usr/local/bin/lockgate")
    version = subprocess.run([lockgate, "--version"], check=True, capture_output=True, text=True).stdout
    assert f"({COMMIT[:12]})" in version, version
    check_health(lockgate, final)


def copy(argument, stage, names, work):
    *flags, sources, target = [*re.findall(r"--\S+", argument), *re.sub(r"--\S+\s*", "", argument).rsplit(None, 1)]
    [origin] = [names[flag.split("=")[1]]["root"] for flag in flags] or [work / "context"]
    target = stage["root"] / target.lstrip("/") if target.startswith("/") else stage["directory"] / target
    for source in sources.split():
        found = origin / source.lstrip("/")
        assert found.exists(), f"COPY {source}: it is not there, or .dockerignore hides it"
        if found.is_dir():
            shutil.copytree(found, target, dirs_exist_ok=True)
        elif argument.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, target)


def run_step(argument, stage, caches):
    command = re.sub(r"--mount=\S+\s*", "", argument)
    # The image's root is a directory here.
    command = re.sub(r"(?<= )/(?=\w)", f"{stage['root']}/", command)
    directory = stage["directory"]
    environment = {k: v for k, v in os.environ.items() if k not in ("CARGO_TARGET_DIR", "RUSTFLAGS")}
    environment["COMMIT"] = COMMIT
    target = directory / "target"
    if "target=/build/target" in argument and caches and caches.is_dir():
        # Only dependencies: lockgate itself is built here.
        shutil.copytree(caches, target / "release", ignore=shutil.ignore_patterns("*lockgate*", "incremental"))
    print(f"RUN {command}", flush=True)
    subprocess.run(["sh", "-ec", command], cwd=directory, env=environment, check=True)


main()
