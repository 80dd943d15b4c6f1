"""What the checks are made of: programs that are started and stopped, requests, metrics, and the gateway's own books."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

# The policy's default weights.
WEIGHTS = {"input": Decimal(1), "cached": Decimal("0.1"), "output": Decimal(2)}


class Broken(Exception):
    """Something that was claimed does not hold, or a part does not work."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def running(name, command, ready, log_folder, within=60, env=None):
    """Runs a program until the block ends, which begins when `ready()` is true. Its whole process group is stopped."""
    log = Path(log_folder) / f"{name}.log"
    with open(log, "w") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                   start_new_session=True, env={**os.environ, **(env or {})})
    try:
        await_that(lambda: ready_or_dead(process, ready, name, log), within, f"{name} to be ready; see {log}")
        yield process
    finally:
        stop(process)


def ready_or_dead(process, ready, name, log):
    if process.poll() is not None:
        raise Broken(f"{name} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return ready()


def stop(process):
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def await_that(holds, within, what):
    """Waits until something holds, looking again and again; never longer than it may take."""
    until = time.monotonic() + within
    while not holds():
        if time.monotonic() > until:
            raise Broken(f"waited {within} s for {what}")
        time.sleep(0.05)


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def answers(port, path, status=200):
    """Whether an address answers so."""
    def ask():
        try:
            return get(port, path)[0] == status
        except OSError:
            return False
    return ask


def metrics(port):
    """Every sample of an engine's metrics, summed over its labels."""
    sums = {}
    for line in get(port, "/metrics")[1].splitlines():
        sample = re.match(r"([a-zA-Z_:]+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", line)
        if sample:
            sums[sample[1]] = sums.get(sample[1], 0.0) + float(sample[2])
    return sums


def chat(tenant, words, tokens, **more):
    """A request: its headers and body."""
    headers = {"content-type": "application/json", "x-tenant-id": tenant, **more.pop("headers", {})}
    body = {"model": "tiny", "messages": [{"role": "user", "content": words}], "max_tokens": tokens,
            "ignore_eos": True, "temperature": 0, **more}
    return headers, json.dumps(body)


def ask(port, request):
    """The answer to a request that is not streamed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", body=request[1], headers=request[0])
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise Broken(f"{response.status}: {text[:500]}")
        return json.loads(text)
    finally:
        connection.close()


def stream(port, request, stop_after=None):
    """The events of a streamed answer; hangs up after so many of them, as a client that leaves does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    events = []
    try:
        connection.request("POST", "/v1/chat/completions", body=request[1], headers=request[0])
        response = connection.getresponse()
        if response.status != 200:
            raise Broken(f"{response.status}: {response.read().decode()[:500]}")
        for line in response:
            line = line.strip()
            if line == b"data: [DONE]":
                return events
            if line.startswith(b"data:"):
                events.append(json.loads(line[5:]))
            if stop_after is not None and len(events) >= stop_after:
                return events
        raise Broken(f"the stream ended without [DONE] after {len(events)} events")
    finally:
        connection.close()


class Gateway:
    """A running Tallygate: its proxy and what its admin API says."""

    def __init__(self, proxy, admin):
        self.proxy, self.admin = proxy, admin

    def tenant(self, tenant):
        rows = [row for row in self.rows("/v1/tenants") if row["tenant"] == tenant]
        return rows[0] if rows else None

    def rows(self, path):
        text = get(self.admin, path)[1]
        read = json.loads(text, parse_float=Decimal)
        return read if isinstance(read, list) else next(value for value in read.values() if isinstance(value, list))

    def settled(self, tenant):
        """What a tenant has been charged, once nothing of it is in flight."""
        await_that(lambda: self.tenant(tenant) and not self.tenant(tenant)["in_flight_requests"], 10,
                   f"{tenant}'s requests to end")
        row = self.tenant(tenant)
        reserved, settled, refunded = (Decimal(str(row[name])) for name in ("reserved", "settled", "refunded"))
        if reserved != settled + refunded:
            raise Broken(f"{tenant}'s books do not balance: {row}")
        return settled


@contextmanager
def gateway(program, upstream, folder, window="{requests: 64}", name="gateway", upstream_key=None, watch=None):
    """Tallygate in front of an upstream."""
    proxy, grpc, admin = free_port(), free_port(), free_port()
    policy = Path(folder) / f"{name}.yaml"
    engine = f", engine: {{metrics: ['http://127.0.0.1:{watch}/metrics'], every: 200ms}}" if watch else ""
    policy.write_text(
        "version: 1\n"
        "classes: [{name: standard, rank: 0, max_wait: 5m}]\n"
        "default_class: standard\n"
        "tenants: [{match: '*'}]\n"
        f"pools: [{{name: engine, window: {window}{engine}}}]\n")
    command = [program, "serve", "--policy", policy, "--upstream", f"http://127.0.0.1:{upstream}",
               "--proxy", f"127.0.0.1:{proxy}", "--grpc", f"127.0.0.1:{grpc}", "--admin", f"127.0.0.1:{admin}",
               "--shutdown-notice", "0s"]
    env = {"TALLYGATE_UPSTREAM_KEY": upstream_key} if upstream_key else None
    with running(name, command, answers(admin, "/readyz"), folder, env=env):
        yield Gateway(proxy, admin)


def cost(usage):
    """What a usage report comes to, at the default weights."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    plain = usage["prompt_tokens"] - cached
    return plain * WEIGHTS["input"] + cached * WEIGHTS["cached"] + usage["completion_tokens"] * WEIGHTS["output"]


def equal(what, ours, theirs):
    if ours != theirs:
        raise Broken(f"{what}: we say {ours}, the engine says {theirs}")
