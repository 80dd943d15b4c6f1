"""Sends requests of its own when Tallygate says so, and tells how they ended.

    python -m pip install grpcio grpcio-tools
    python examples/python/acquire.py 127.0.0.1:9001 http://127.0.0.1:8000

The first address is Tallygate's gRPC server (`tallygate serve --grpc`), the second an OpenAI-compatible upstream. What an
agent loop or a batch worker needs is in `Turn`: it waits for its turn, keeps its lease alive, and settles it whatever
happens in between.
"""

import json
import pathlib
import sys
import tempfile
import threading
import urllib.request

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).parents[2] / "proto"


def stubs():
    """The API's Python code. A project would generate it once, and keep it."""
    folder = tempfile.mkdtemp()
    arguments = ["protoc", f"-I{PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    if protoc.main([*arguments, "tallygate/v1/admission.proto"]) != 0:
        raise SystemExit("admission.proto does not compile")
    sys.path.insert(0, folder)
    from tallygate.v1 import admission_pb2, admission_pb2_grpc

    return admission_pb2, admission_pb2_grpc


api, services = stubs()


class Turn:
    """One request's turn: `with Turn(...) as turn:` returns once it may be sent, or raises `grpc.RpcError`."""

    def __init__(self, admission, path, body, metadata=(), patience_s=60):
        self.admission, self.metadata, self.patience_s = admission, metadata, patience_s
        self.asked = api.AcquireRequest(http=api.HttpRequest(path=path, body=body))
        self.outcome, self.usage, self.status = api.OUTCOME_ABORTED, None, 0
        self.over = threading.Event()

    def __enter__(self):
        # The deadline is how long it waits. A cancelled call leaves the queue.
        got = self.admission.Acquire(self.asked, timeout=self.patience_s, metadata=self.metadata)
        self.lease, self.life_s = got.lease, got.lease_life_ms / 1000
        self.body = got.body or self.asked.http.body
        self.alive = threading.Thread(target=self.keep_alive, daemon=True)
        self.alive.start()
        return self

    def keep_alive(self):
        while not self.over.wait(self.life_s / 3):
            self.admission.Renew(api.RenewRequest(lease=self.lease))

    def completed(self, status, usage):
        """The whole answer is there, and says that it used this much."""
        self.outcome, self.status = api.OUTCOME_COMPLETED, status
        if usage:
            self.usage = api.Usage(input_tokens=usage["prompt_tokens"], output_tokens=usage["completion_tokens"])

    def __exit__(self, *_raised):
        self.over.set()
        self.alive.join()
        told = api.SettleRequest(lease=self.lease, outcome=self.outcome, usage=self.usage, upstream_status=self.status)
        # May be sent again if the connection breaks: only the first one counts.
        self.settled = self.admission.Settle(told)


def ask(admission, upstream, words):
    path, body = "/v1/chat/completions", {"model": "demo", "max_tokens": 20}
    body["messages"] = [{"role": "user", "content": words}]
    metadata = [("x-tenant-id", "batch"), ("x-session-id", "nightly")]
    with Turn(admission, path, json.dumps(body).encode(), metadata) as turn:
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(upstream + path, turn.body, headers)) as answer:
            told = json.load(answer)
            turn.completed(answer.status, told.get("usage"))
    return told["choices"][0]["message"]["content"], turn.settled.charged


def refused(admission):
    """What a refusal looks like."""
    try:
        with Turn(admission, "/v1/chat/completions", b'{"model": "demo"', [("x-tenant-id", "batch")]):
            raise AssertionError("it cannot be read")
    except grpc.RpcError as error:
        told = dict(error.trailing_metadata())
        return error.code().name, told["x-tallygate-reason"], error.details()


def main(tallygate, upstream):
    with grpc.insecure_channel(tallygate) as channel:
        admission = services.AdmissionStub(channel)
        for words in ["What is fair?", "Who goes next?"]:
            answer, charged = ask(admission, upstream, words)
            print(f"{charged:.0f} virtual tokens: {answer}")
        print(*refused(admission))


if __name__ == "__main__":
    main(*sys.argv[1:])
