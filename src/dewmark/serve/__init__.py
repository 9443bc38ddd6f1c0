"""The service: detection over HTTP for a desk, and marked text in OpenAI's format.

Read `app` first: it puts the parts together. `settings` is what a service is told, `tenants` whose keys it
knows, `scoring` what it says of a text, `pool` how requests share the work, `store`, `tokens`, `jobs` what
outlives a process, `generation` and `openai_format` the writing side, `supervisor` and `worker` the
processes.

Boundary: nobody but the command line imports this package; its libraries are the extra ``serve``.
"""
