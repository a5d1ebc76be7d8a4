"""An OpenAI-compatible server on the loopback interface that answers each chat completion after a
fixed time.

python benchmarks/server.py --delay-s 0.2        prints its address and serves until its standard
input ends
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from aiohttp import web

TEXT = (
    "Both numbers are added digit by digit, and the carry is kept. The sum is"
    " forty-two.\nAnswer: 42"
)


async def serve(delay_s: float) -> None:
    count = 0
    body = json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1,
            "model": "bench",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": TEXT},
                }
            ],
            "usage": {"prompt_tokens": 60, "completion_tokens": 24, "total_tokens": 84},
        }
    ).encode()

    async def answer(request: web.Request) -> web.Response:
        nonlocal count
        json.loads(await request.read())
        count += 1
        await asyncio.sleep(delay_s)
        return web.Response(body=body, content_type="application/json")

    async def counted(request: web.Request) -> web.Response:
        return web.json_response({"requests": count})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/count", counted)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay-s", type=float, default=0.2)
    asyncio.run(serve(parser.parse_args().delay_s))
