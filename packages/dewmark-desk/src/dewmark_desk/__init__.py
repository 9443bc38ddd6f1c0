"""The HTTP service: detection with a web page, and marked text generation in OpenAI's format.

Start with `app`, which puts the parts together. `settings` configures a service, `tenants` opens its
detectors and keys, `verdicts` answers questions about texts, `fair_pool` lets tokens take turns, `generation`
runs the host that generates marked text. `store`, `api_tokens`, `jobs` and `query_log` hold what outlives a
process. `supervisor` starts the `worker` processes.

Signed reports are in `detection_report` and `signing`, the provider's dossier in `compliance`.

Boundary: imports the public names of `dewmark` only, and is found by it through entry points.
"""
