"""What `helm test` runs: one streamed request through the gateway, from its first delta to its end. Standard library only."""

import json
import os
import sys
import urllib.request

GATEWAY = os.environ["GATEWAY"]


def ask(path: str, body: dict[str, object] | None = None) -> "urllib.request.http.client.HTTPResponse":
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(GATEWAY + path, data=data, headers={"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


def main() -> str | None:
    """What is wrong, or None."""
    model = os.environ.get("MODEL") or json.load(ask("/v1/models"))["data"][0]["id"]
    question = {"model": model, "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
    with ask("/v1/chat/completions", question) as answer:
        events = [line[5:].strip() for line in answer if line.startswith(b"data:")]
        print(f"request {answer.headers['x-deltafence-request-id']}: {len(events)} events, model {model}")
    if not events or events[-1] != b"[DONE]":
        return f"the stream did not end with [DONE]: {events[-1:]}"
    if any("error" in json.loads(event) for event in events[:-1]):
        return "the stream held an error event"
    return None


if __name__ == "__main__":
    sys.exit(main())
