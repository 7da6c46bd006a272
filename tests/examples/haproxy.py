"""Runs config/haproxy.cfg in front of two lockgates and a Redis: tests/examples/haproxy.py path-of-lockgate"""

import os, re, signal, socket, subprocess, sys, tempfile, time
from pathlib import Path

lockgate = sys.argv[1]
environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKGATE_")}
# The grace in front of a new Redis is shorter with these.
environment |= {
    "LOCKGATE_UPSTREAM_CONNECT_TIMEOUT": "300ms",
    "LOCKGATE_UPSTREAM_TIMEOUT": "500ms",
    "LOCKGATE_UPSTREAM_PING": "100ms",
    "LOCKGATE_WRITE_BACK_GRACE": "1300ms",
}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Client:
    """A connection that sends inline commands and reads replies of one line, or of one string."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.socket.makefile("rb")

    def send(self, command):
        self.socket.sendall(command.encode() + b"\r\n")

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        return self.file.readline().decode().strip() if line[:1] == b"$" and line != b"$-1\r\n" else line.decode().strip()

    def say(self, command):
        self.send(command)
        return self.read()


def eventually(what, holds):
    deadline = time.monotonic() + 20
    while True:
        try:
            if holds():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


redis, proxy = free_port(), free_port()
gates = {name: (free_port(), free_port()) for name in ("active", "standby")}
processes = {}


def start(name):
    port, admin = gates[name]
    flags = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--upstream", f"redis://127.0.0.1:{redis}"]
    processes[name] = subprocess.Popen([lockgate, "--log", "off", *flags], env=environment)
    eventually(f"{name} listens", lambda: Client(port))


def waiters(name):
    """Returns the number of waiters in this instance's memory."""
    section = Client(gates[name][0])
    section.send("INFO lockgate")
    return next(int(line.split(b":")[1]) for line in section.file if line.startswith(b"lockgate_waiters:"))


def lock(token):
    client = Client(proxy)
    assert client.say(f"LOCK order:42 TOKEN {token} WAIT 10000") == token
    return client


with tempfile.TemporaryDirectory() as work:
    try:
        processes["redis"] = subprocess.Popen(
            ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "", "--dir", work], stdout=subprocess.DEVNULL
        )
        eventually("Redis answers", lambda: Client(redis).say("PING") == "+PONG")
        for name in gates:
            start(name)
        text = Path("config/haproxy.cfg").read_text()
        for name, address in (("active", "192.0.2.1"), ("standby", "192.0.2.2")):
            port, admin = gates[name]
            text, changed = re.subn(rf"{address}:6380", f"127.0.0.1:{port} port {admin}", text)
            assert changed == 1
        text, changed = re.subn(r"bind :6380", f"bind 127.0.0.1:{proxy}", text)
        assert changed == 1
        config = Path(work, "haproxy.cfg")
        config.write_text(text)
        processes["haproxy"] = subprocess.Popen(["haproxy", "-q", "-db", "-f", str(config)])
        eventually("HAProxy passes clients on", lambda: Client(proxy).say("PING") == "+PONG")

        # All clients are at the active instance.
        owner, waiter = lock("first"), Client(proxy)
        waiter.send("LOCK order:42 TOKEN second")
        eventually("it waits at the active instance", lambda: waiters("active") == 1)
        assert waiters("standby") == 0

        # The active instance dies: connections end, and new ones find the standby. The lock is still held.
        processes["active"].kill()
        processes["active"].wait()
        for cut in (owner, waiter):
            try:
                cut.read()
                sys.exit("a connection to an instance that is gone goes on")
            except ConnectionError:
                pass
        waiter = None

        def waits_again():
            global waiter
            waiter = Client(proxy)
            waiter.send("LOCK order:42 TOKEN second")
            time.sleep(0.05)
            return waiters("standby") == 1

        eventually("it waits at the standby", waits_again)
        assert Client(proxy).say("UNLOCK order:42 first") == ":1"
        assert waiter.read() == "second"

        # The active instance is back: new clients go there, and the others stay where they are.
        start("active")

        def third_is_at_the_active():
            client = Client(proxy)
            client.send("LOCK order:42 WAIT 200")
            time.sleep(0.05)
            return waiters("active") == 1

        eventually("new clients are at the active instance", third_is_at_the_active)
        assert waiter.say("UNLOCK order:42 second") == ":1"
        print("HAProxy keeps one active, and the standby takes over")
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
