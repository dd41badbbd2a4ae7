"""The routes of the Batch API (https://platform.openai.com/docs/api-reference/batch and .../files)."""

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from endpoint.batches.service import BatchRequest, BatchService, read_form
from endpoint.http.errors import ApiError
from endpoint.http.origin import origin_of, owner_of_request
from endpoint.requests import body_of, documented

_UPLOAD_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}


def add_batch_routes(app: FastAPI, service: BatchService | None) -> None:
    """Add the routes to an application; without a service they say how the Batch API is switched on."""

    def on() -> BatchService:
        if service is None:
            message = (
                "The Batch API is switched off here. The server's configuration serve.batches_path switches it on."
            )
            raise ApiError(404, message, code="batches_switched_off")
        return service

    @app.post("/v1/files", openapi_extra=_UPLOAD_FORM)
    async def _upload(request: Request) -> Any:
        files = on()
        try:
            form, content, file = await read_form(request, files.settings, files.clock())
        except ClientDisconnect:
            return Response(status_code=400)  # which the client does not see
        try:
            return (await files.add_file(owner_of_request(request), content, file)).shown()
        finally:
            await form.close()

    @app.get("/v1/files")
    async def _list_files(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: Annotated[str | None, Query(max_length=64)] = None,
    ) -> dict[str, Any]:
        return await on().list_files(owner_of_request(request), after, limit, order, purpose)

    @app.get("/v1/files/{file_id}")
    async def _file(file_id: str, request: Request) -> dict[str, Any]:
        return (await on().file(owner_of_request(request), file_id)).shown()

    @app.get("/v1/files/{file_id}/content")
    async def _content(file_id: str, request: Request) -> Response:
        files, owner = on(), owner_of_request(request)
        file = await files.file(owner, file_id)
        return StreamingResponse(
            files.files.chunks(owner, file_id),
            media_type="application/octet-stream",
            headers={"content-length": str(file.bytes)},
        )

    @app.delete("/v1/files/{file_id}")
    async def _delete_file(file_id: str, request: Request) -> dict[str, Any]:
        return await on().delete_file(owner_of_request(request), file_id)

    @app.post("/v1/batches", openapi_extra=documented(BatchRequest))
    async def _create(request: Request) -> dict[str, Any]:
        body = await body_of(BatchRequest, request)
        return (await on().create(owner_of_request(request), body, origin_of(request.scope))).shown()

    @app.get("/v1/batches")
    async def _list_batches(
        request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> dict[str, Any]:
        return await on().list_batches(owner_of_request(request), after, limit)

    @app.get("/v1/batches/{batch_id}")
    async def _batch(batch_id: str, request: Request) -> dict[str, Any]:
        return (await on().batch(owner_of_request(request), batch_id)).shown()

    @app.post("/v1/batches/{batch_id}/cancel")
    async def _cancel(batch_id: str, request: Request) -> dict[str, Any]:
        return (await on().cancel(owner_of_request(request), batch_id)).shown()
