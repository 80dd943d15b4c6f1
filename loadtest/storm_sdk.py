"""A retry storm of the official SDKs: clients in a closed loop, half OpenAI's and half Anthropic's, as they come.

    storm_sdk.py URL [--clients N] [--think S] [--seconds S] [--warm-up S]

Prints what the clients saw, as JSON: tries, how many came back when told and of these how many were let in, and the
largest part of them within one tenth of a second. Nothing of the SDKs is changed but that their requests are watched.
"""

import argparse
import asyncio
import collections
import itertools
import json
import random
import time

import anthropic
import openai

WORDS = "time people water day part place sound work man year name line boy air house hand".split()
# A retry counts as heeding when it comes this near to when it was told to: the SDKs add nothing, the machine may.
NEAR_S = 0.25


class Watch:
    """Writes down every try: which request it belongs to, which try it is, when, and what became of it."""

    def __init__(self):
        self.tries = collections.defaultdict(list)

    async def request(self, request):
        number = int(request.headers.get("x-stainless-retry-count", "0"))
        self.tries[request.headers["x-storm-request"]].append({"sent": time.monotonic(), "number": number})

    async def response(self, response):
        last = self.tries[response.request.headers["x-storm-request"]][-1]
        last["status"], last["answered"] = response.status_code, time.monotonic()
        told = response.headers.get("retry-after-ms")
        last["told_s"] = float(told) / 1e3 if told else None

    def hooks(self):
        return {"request": [self.request], "response": [self.response]}


async def client(number, arguments, watch, numbers, until):
    draw = random.Random(number)
    tenant = f"tenant-{number % 4}"
    if number % 2:
        sdk = openai.AsyncOpenAI(api_key="none", base_url=f"{arguments.url}/v1",
                                 http_client=openai.DefaultAsyncHttpxClient(event_hooks=watch.hooks()))
        send = lambda **more: sdk.chat.completions.create(**more)
    else:
        sdk = anthropic.AsyncAnthropic(api_key="none", base_url=arguments.url,
                                       http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=watch.hooks()))
        send = lambda **more: sdk.messages.create(**more)
    await asyncio.sleep(draw.random() * arguments.think)
    done = collections.Counter()
    while time.monotonic() < until:
        words = " ".join(draw.choices(WORDS, k=draw.randint(20, 150)))
        length = min(400, max(1, round(draw.lognormvariate(4.6, 0.5))))
        try:
            await send(model="demo", max_tokens=length, messages=[{"role": "user", "content": words}],
                       extra_body={"ignore_eos": True},
                       extra_headers={"x-tenant-id": tenant, "x-storm-request": str(next(numbers))})
            done["answered"] += 1
        except (openai.RateLimitError, anthropic.RateLimitError):
            done["given up"] += 1
        await asyncio.sleep(arguments.think)
    await sdk.close()
    return done


def judged(watch, done, seconds, since):
    """What the tries show. Of those that came back, only the ones after `since`: at first nothing is measured yet."""
    let_in = back = 0
    tenths = collections.Counter()
    for tries in watch.tries.values():
        for before, after in itertools.pairwise(tries):
            told = before.get("told_s")
            if told is None or "status" not in after or after["sent"] < since:
                continue
            if abs(after["sent"] - before["answered"] - told) <= NEAR_S:
                back += 1
                let_in += after["status"] == 200
                tenths[int(after["sent"] * 10)] += 1
    all_tries = sum(len(tries) for tries in watch.tries.values())
    return {
        "sdks": {"openai": openai.__version__, "anthropic": anthropic.__version__},
        "requests": len(watch.tries), "tries": all_tries, "tries_per_s": round(all_tries / seconds, 2),
        "answered": done["answered"], "answered_per_s": round(done["answered"] / seconds, 2),
        "given_up": done["given up"], "came_back_when_told": back,
        "let_in_on_return": round(let_in / back, 4) if back else None,
        "at_once": round(max(tenths.values()) / back, 4) if back else None,
    }


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--think", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--warm-up", type=float, default=60.0)
    arguments = parser.parse_args()
    watch, numbers = Watch(), itertools.count()
    began = time.monotonic()
    until = began + arguments.seconds
    clients = [client(number, arguments, watch, numbers, until) for number in range(arguments.clients)]
    done = sum(await asyncio.gather(*clients), collections.Counter())
    print(json.dumps(judged(watch, done, arguments.seconds, began + arguments.warm_up), indent=2))


asyncio.run(main())
