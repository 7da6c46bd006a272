"""Runs config/compose-sentinel.yaml without containers, and kills the master: sentinel.py LOCKGATE

Each service runs its command on a loopback address of its own in place of the one in the file, so the ports are those
of the file. Both lockgates must grant locks, before and after a replica has taken over.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time

import yaml

lockgate = os.path.realpath(sys.argv[1])
text = open("config/compose-sentinel.yaml").read()
# Linux answers on all of 127.0.0.0/8.
services = yaml.safe_load(text.replace("172.28.63.", "127.0.0."))["services"]
compose = yaml.safe_load(open("config/compose.yaml"))
environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKGATE_")}
started = {}


def address(name):
    return services[name]["networks"]["locks"]["ipv4_address"]


def start(name, directory):
    service = services[name]
    os.mkdir(f"{directory}/{name}")
    command, own = service.get("command"), dict(environment)
    if command is None:
        own.update(service["environment"])
        # Names resolve in the network of the file only.
        own["LOCKGATE_UPSTREAM"] = re.sub(r"sentinel-\d", lambda name: address(name[0]), own["LOCKGATE_UPSTREAM"])
        port = re.fullmatch(r"127\.0\.0\.1:(\d+):6380", service["ports"][0])[1]
        command = [lockgate, "--listen", f"127.0.0.1:{port}", "--log", "off"]
    else:
        # Others learn the address that it connects from; the image of Redis has its protected mode off.
        bind = f"--bind {address(name)} --bind-source-addr {address(name)} --protected-mode no"
        if command[0] == "sh":
            command = [*command[:-1], f"{command[-1].rstrip()} {bind}"]
        else:
            command = [*command, *bind.split()]
    started[name] = subprocess.Popen(command, cwd=f"{directory}/{name}", env=own, stdout=subprocess.DEVNULL)


def ask(at, *words):
    """The first line of the reply, or of the bulk string that it is."""
    with socket.create_connection(at, timeout=30) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        reply = connection.makefile("rb")
        line = reply.readline().decode().strip()
        return reply.readline().decode().strip() if line.startswith("$") else line


def ask_info(sentinel):
    """The line of INFO that describes the service."""
    with socket.create_connection(sentinel, timeout=5) as connection:
        connection.sendall(b"INFO sentinel\r\n")
        for line in connection.makefile("rb"):
            if line.startswith(b"master0:"):
                return line.decode()


def until(what, holds):
    for _ in range(300):
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"not within 30 s: {what}")


def lock_everywhere(key):
    for name in ("lockgate-1", "lockgate-2"):
        port = int(services[name]["ports"][0].split(":")[1])
        until(f"{name} listens", lambda: ask(("127.0.0.1", port), "PING"))
        said = ask(("127.0.0.1", port), "LOCK", f"{key}:{name}", "TOKEN", "mine", "WAIT", "25000")
        assert said == "mine", (name, said)


one = compose["services"]["lockgate"]
for name in ("lockgate-1", "lockgate-2"):
    for key in ("read_only", "cap_drop", "security_opt", "stop_grace_period", "restart", "ulimits", "build"):
        assert services[name][key] == one[key], key
    sentinels = re.fullmatch(r"redis\+sentinel://(.*)/locks", services[name]["environment"]["LOCKGATE_UPSTREAM"])[1]
    assert sentinels.split(",") == [service for service in services if service.startswith("sentinel")]

with tempfile.TemporaryDirectory() as directory:
    try:
        for name in services:
            start(name, directory)
        sentinel = (address("sentinel-1"), 26379)
        until("the replicas follow", lambda: "slaves=2," in ask_info(sentinel))
        until("the Sentinels know each other", lambda: "sentinels=3" in ask_info(sentinel))
        lock_everywhere("before")
        started["redis-1"].kill()
        begun = time.monotonic()
        until("a replica takes over", lambda: f"{address('redis-1')}:" not in ask_info(sentinel))
        print(f"a replica took over after {time.monotonic() - begun:.1f} s")
        lock_everywhere("after")
    finally:
        for process in started.values():
            process.kill()
            process.wait()
print("both lockgates followed")
