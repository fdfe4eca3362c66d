"""A provider on 127.0.0.1 that does as it is told: chat completions, responses and messages, streamed or not.

    with StubServer(Behaviour(status=429), Behaviour(text="hello")) as server:
        ...  # two requests to f"{server.url}/v1"; the last behaviour is repeated
        assert server.requests[0].body["model"] == "m"

A behaviour may also be a callable that is given the parsed body of the request and returns a ``Behaviour``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Behaviour:
    """The server's answer to one request."""

    text: str = ""
    calls: tuple[str, ...] = ()  # raw arguments of tool calls
    finish: str = "stop"  # stop, length or refusal
    thinking: str = ""
    usage: tuple[int, int, int] = (100, 0, 20)  # input (cached included), cached, output
    status: int = 200
    error: Any = "the stub says no"  # the message of an error status, or a whole JSON body
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # sent as the body instead of an answer
    content_type: str = "application/json"
    delay_s: float = 0.0
    cut: bool = False  # break the connection off in the middle of the body
    fade: bool = False  # end a stream in the middle, politely
    hang: bool = False  # never answer


@dataclass(frozen=True)
class Request:
    """A request that was received."""

    path: str
    headers: dict[str, str]
    body: Any
    at: float


Script = Behaviour | Callable[[Any], Behaviour]


class StubServer:
    """The server as a context manager."""

    def __init__(self, *script: Script) -> None:
        self.requests: list[Request] = []
        self._script = list(script) or [Behaviour(text="hello")]
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.stub = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def receive(self, request: Request) -> Behaviour:
        with self._lock:
            step = self._script[min(len(self.requests), len(self._script) - 1)]
            self.requests.append(request)
        return step if isinstance(step, Behaviour) else step(request.body)

    def wait(self, behaviour: Behaviour) -> None:
        self._closing.wait(3600 if behaviour.hang else behaviour.delay_s)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    stub: StubServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away, which is what many tests are about


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body, time.monotonic())
        behaviour = self.server.stub.receive(request)
        self.server.stub.wait(behaviour)
        self.close_connection = True
        if behaviour.hang:
            return
        wire = WIRES[self.path.split("?")[0]]
        if behaviour.status != 200:
            self._send_whole(behaviour, json.dumps(_error_body(behaviour)).encode())
        elif behaviour.raw is not None:
            self._send_whole(behaviour, behaviour.raw)
        elif body.get("stream"):
            self._send_events(behaviour, list(wire.events(behaviour, body["model"])))
        else:
            self._send_whole(behaviour, json.dumps(wire.whole(behaviour, body["model"])).encode())

    def _send_whole(self, behaviour: Behaviour, body: bytes) -> None:
        self.send_response(behaviour.status)
        self.send_header("Content-Type", behaviour.content_type)
        self.send_header("Content-Length", str(len(body)))
        self._end_headers(behaviour)
        self.wfile.write(body[: len(body) // 2] if behaviour.cut else body)

    def _send_events(self, behaviour: Behaviour, events: list[tuple[str | None, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if not behaviour.fade:  # without a length or chunks, the end of the connection is the end of the body
            self.send_header("Transfer-Encoding", "chunked")
        self._end_headers(behaviour)
        stop = len(events) // 2 if behaviour.cut or behaviour.fade else len(events)
        for name, data in events[:stop]:
            text = data if isinstance(data, str) else json.dumps(data)
            line = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
            payload = line.encode()
            self.wfile.write(payload if behaviour.fade else b"%x\r\n%s\r\n" % (len(payload), payload))
        if not behaviour.cut and not behaviour.fade:
            self.wfile.write(b"0\r\n\r\n")

    def _end_headers(self, behaviour: Behaviour) -> None:
        self.send_header("Connection", "close")
        for name, value in behaviour.headers.items():
            self.send_header(name, value)
        self.end_headers()


def _error_body(behaviour: Behaviour) -> Any:
    if not isinstance(behaviour.error, str):
        return behaviour.error
    return {"type": "error", "error": {"message": behaviour.error, "type": "stub_error", "code": None}}


def _pieces(text: str) -> Iterator[str]:
    """A text in a few parts, as a stream brings it."""
    size = max(1, -(-len(text) // 4))
    return (text[start : start + size] for start in range(0, len(text), size))


class ChatCompletions:
    """POST /v1/chat/completions."""

    @classmethod
    def whole(cls, behaviour: Behaviour, model: str) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": behaviour.text or None}
        if behaviour.calls:
            message["tool_calls"] = [cls._call(index, call) for index, call in enumerate(behaviour.calls)]
        if behaviour.thinking:
            message["reasoning_content"] = behaviour.thinking
        choice = {"index": 0, "message": message, "finish_reason": cls._finish(behaviour)}
        return {**cls._head(model, "chat.completion"), "choices": [choice], "usage": cls._usage(behaviour)}

    @classmethod
    def events(cls, behaviour: Behaviour, model: str) -> Iterator[tuple[str | None, Any]]:
        def chunk(delta: Any, finish: str | None = None) -> tuple[None, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return None, {**cls._head(model, "chat.completion.chunk"), "choices": [choice]}

        yield chunk({"role": "assistant", "content": ""})
        for piece in _pieces(behaviour.thinking):
            yield chunk({"reasoning_content": piece})
        for piece in _pieces(behaviour.text):
            yield chunk({"content": piece})
        for index, call in enumerate(behaviour.calls):
            yield chunk({"tool_calls": [cls._call(index, "")]})
            for piece in _pieces(call):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, cls._finish(behaviour))
        yield None, {**cls._head(model, "chat.completion.chunk"), "choices": [], "usage": cls._usage(behaviour)}
        yield None, "[DONE]"

    @staticmethod
    def _finish(behaviour: Behaviour) -> str:
        plain = "tool_calls" if behaviour.calls else "stop"
        return {"length": "length", "refusal": "content_filter"}.get(behaviour.finish, plain)

    @staticmethod
    def _head(model: str, kind: str) -> dict[str, Any]:
        return {"id": "chat-1", "object": kind, "created": 1_700_000_000, "model": model}

    @staticmethod
    def _call(index: int, arguments: str) -> Any:
        function = {"name": "submit", "arguments": arguments}
        return {"index": index, "id": f"call-{index}", "type": "function", "function": function}

    @staticmethod
    def _usage(behaviour: Behaviour) -> Any:
        given, cached, made = behaviour.usage
        return {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": given + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class Responses:
    """POST /v1/responses."""

    @classmethod
    def whole(cls, behaviour: Behaviour, model: str) -> Any:
        given, cached, made = behaviour.usage
        reason = {"length": "max_output_tokens", "refusal": "content_filter"}.get(behaviour.finish)
        return {
            "id": "resp-1",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": model,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": cls._items(behaviour),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": given,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": given + made,
            },
        }

    @classmethod
    def events(cls, behaviour: Behaviour, model: str) -> Iterator[tuple[str | None, Any]]:
        number = iter(range(10_000))

        def event(kind: str, **data: Any) -> tuple[str, Any]:
            return kind, {"type": kind, "sequence_number": next(number), **data}

        final = cls.whole(behaviour, model)
        yield event("response.created", response={**final, "status": "in_progress", "output": [], "usage": None})
        for index, item in enumerate(final["output"]):
            where = {"output_index": index, "item_id": item["id"]}
            empty = {"content": []} if item["type"] == "message" else {"arguments": ""} if "name" in item else {}
            yield event("response.output_item.added", output_index=index, item={**item, **empty})
            if item["type"] == "message":
                for piece in _pieces(behaviour.text):
                    yield event("response.output_text.delta", content_index=0, delta=piece, logprobs=[], **where)
            elif item["type"] == "function_call":
                for piece in _pieces(item["arguments"]):
                    yield event("response.function_call_arguments.delta", delta=piece, **where)
                yield event(
                    "response.function_call_arguments.done", arguments=item["arguments"], name="submit", **where
                )
            yield event("response.output_item.done", output_index=index, item=item)
        yield event(f"response.{final['status']}", response=final)

    @staticmethod
    def _items(behaviour: Behaviour) -> list[Any]:
        items: list[Any] = []
        if behaviour.thinking:
            summary = [{"type": "summary_text", "text": behaviour.thinking}]
            items.append({"type": "reasoning", "id": "rs-1", "summary": summary})
        if behaviour.text:
            content = [{"type": "output_text", "text": behaviour.text, "annotations": [], "logprobs": []}]
            message = {"type": "message", "id": "msg-1", "role": "assistant", "status": "completed"}
            items.append({**message, "content": content})
        for index, call in enumerate(behaviour.calls):
            head = {"type": "function_call", "id": f"fc-{index}", "call_id": f"call-{index}", "name": "submit"}
            items.append({**head, "arguments": call, "status": "completed"})
        return items


class Messages:
    """POST /v1/messages."""

    @classmethod
    def whole(cls, behaviour: Behaviour, model: str) -> Any:
        blocks = [block | full for block, _, full in cls._blocks(behaviour, parse=True)]
        return {**cls._head(behaviour, model), "content": blocks, "stop_reason": cls._stop(behaviour)}

    @classmethod
    def events(cls, behaviour: Behaviour, model: str) -> Iterator[tuple[str | None, Any]]:
        def event(kind: str, **data: Any) -> tuple[str, Any]:
            return kind, {"type": kind, **data}

        head = {**cls._head(behaviour, model), "content": [], "stop_reason": None}
        yield event("message_start", message=head)
        for index, (block, deltas, _) in enumerate(cls._blocks(behaviour, parse=False)):
            yield event("content_block_start", index=index, content_block=block)
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        stop = {"stop_reason": cls._stop(behaviour), "stop_sequence": None}
        yield event("message_delta", delta=stop, usage={"output_tokens": behaviour.usage[2]})
        yield event("message_stop")

    @staticmethod
    def _stop(behaviour: Behaviour) -> str:
        plain = "tool_use" if behaviour.calls else "end_turn"
        return {"length": "max_tokens", "refusal": "refusal"}.get(behaviour.finish, plain)

    @staticmethod
    def _head(behaviour: Behaviour, model: str) -> dict[str, Any]:
        given, cached, made = behaviour.usage
        usage = {"input_tokens": given - cached, "cache_read_input_tokens": cached, "output_tokens": made}
        return {"id": "msg-1", "type": "message", "role": "assistant", "model": model, "usage": usage}

    @staticmethod
    def _blocks(behaviour: Behaviour, parse: bool) -> Iterator[tuple[Any, list[Any], Any]]:
        """The start of each block, what a stream adds to it, and what a whole answer has in its place."""
        if thought := behaviour.thinking:
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(thought)]
            yield {"type": "thinking", "thinking": "", "signature": "s"}, deltas, {"thinking": thought}
        if behaviour.text:
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(behaviour.text)]
            yield {"type": "text", "text": ""}, deltas, {"text": behaviour.text}
        for index, call in enumerate(behaviour.calls):
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(call)]
            block = {"type": "tool_use", "id": f"call-{index}", "name": "submit", "input": {}}
            yield block, deltas, {"input": json.loads(call)} if parse else {}


WIRES = {
    "/v1/chat/completions": ChatCompletions,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
}
