"""A long-running server over HTTP.

In: a ``LiveServer``, an address. Out: ``POST /`` with a JSON body, or none, is answered with ``{"output": ...,
"latency_ms": ...}``; ``GET /status`` says what serves. Not here: batches, instances (``live``).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from windtunnel.base.documents import json_text
from windtunnel.base.extras import require
from windtunnel.errors import FlightError, InputError
from windtunnel.systems.serving.live import LiveServer

__all__ = ["listening", "serve_http", "status"]

_MAX_BYTES = 64 * 2**20  # of a request's body


def status(live: LiveServer) -> dict[str, Any]:
    """Return the state of a server in plain values."""
    split = live.split
    return {
        "state": live.state,
        "split": str(split),
        "batch": split.batch,
        "predicted_ns": split.latency_ns,
        "num_ready": live.num_ready,
        "num_unanswered": live.num_unanswered,
        "num_changes": len(live.changes),
    }


def listening(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Parameters
    ----------
    host : str
    port : int
        0: a free one.

    Raises
    ------
    MissingExtraError
        aiohttp is not installed.
    InputError
        Nobody can listen there.
    """
    require("aiohttp.web", extra="serve")
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise InputError(
            f"the server cannot listen at {host}:{port}: {error}",
            where="--host, --port",
            fix="--port 0 takes a free one",
        ) from error


def serve_http(live: LiveServer, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; waiting requests are still answered.

    Parameters
    ----------
    live : LiveServer
    listener : socket
        From ``listening``.
    ready : callable
        Gets the address once requests are answered.
    """
    web = require("aiohttp.web", extra="serve")

    def json_response(document: dict[str, Any], code: int = 200) -> Any:
        return web.Response(text=json_text(document), status=code, content_type="application/json")

    async def answer(request: Any) -> Any:
        text = await request.text()
        try:
            body = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError) as error:
            return json_response({"error": f"the body is no JSON: {error}"}, 400)
        try:
            reply = await asyncio.wrap_future(live.submit(body))
        except InputError as error:
            return json_response({"error": error.message}, 422)
        except FlightError as error:
            return json_response({"error": error.message}, 503)
        return json_response({"output": reply.output, "latency_ms": (reply.answered_ns - reply.arrived_ns) / 1e6})

    async def say_status(_request: Any) -> Any:
        return json_response(status(live))

    async def say_ready(_app: Any) -> None:
        host, port = listener.getsockname()[:2]
        ready(f"http://{host}:{port}")

    app = web.Application(client_max_size=_MAX_BYTES)
    app.add_routes([web.post("/", answer), web.get("/status", say_status)])
    app.on_startup.append(say_ready)
    web.run_app(app, sock=listener, print=None, access_log=None)
