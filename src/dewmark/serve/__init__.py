"""The HTTP service: detection with a web page, and marked text generation in OpenAI's format.

Start with `app`, which puts the parts together. `settings` configures a service, `tenants` opens its
detectors and keys, `verdicts` answers questions about texts, `thread_pool` batches requests, `generation`
runs the host that generates marked text. `store`, `api_tokens`, `jobs` and `query_log` hold what outlives a
process. `supervisor` starts the `worker` processes.

Boundary: only the command line imports this package; its libraries are the extra ``serve``.
"""
