"""Requests generated from the OpenAPI document by schemathesis: none makes the service fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.desk.live import live_service, make_service

pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    limits = {"max_new_tokens": 8, "jobs_per_token": 10_000, "max_jobs": 10_000}
    service = make_service(tmp_path_factory.mktemp("schema"), generates=True, **limits)
    _, token = service.tokens.new("test", ["admin"], per_minute=1e6)
    with live_service(Path(), service=service) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json"), {"Authorization": f"Bearer {token}"}


OPERATIONS = [
    ("/healthz", "GET"),
    ("/readyz", "GET"),
    ("/metrics", "GET"),
    ("/.well-known/dewmark.json", "GET"),
    ("/.well-known/jwks.json", "GET"),
    ("/v1/whoami", "GET"),
    ("/v1/example", "GET"),
    ("/v1/extract", "POST"),
    ("/v1/rewrite", "POST"),
    ("/v1/detect", "POST"),
    ("/v1/audit", "POST"),
    ("/v1/batches", "POST"),
    ("/v1/reports", "POST"),
    ("/v1/reports/table", "POST"),
    ("/v1/reports/verify", "POST"),
    ("/v1/jobs", "GET"),
    ("/v1/jobs/{job}", "GET"),
    ("/v1/jobs/{job}/results", "GET"),
    ("/v1/jobs/{job}", "DELETE"),
    ("/v1/models", "GET"),
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
]


def test_every_operation_is_tried(document):
    described = document[0].raw_schema["paths"]
    assert {(path, method.upper()) for path in described for method in described[path]} == set(OPERATIONS)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_request_makes_it_fail(document, path, method, mode):
    operation, token = document[0][path][method], document[1]

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
    def ask(case):
        response = case.call(headers=token)
        assert response.status_code < 500, response.text
        # the schema cannot say that a text must not be blank, or that one of two fields is required; query
        # parameters that nobody knows are ignored, and the token is always the right one; 413 is a refusal
        ignored = [negative_data_rejection] if method == "GET" or response.status_code == 413 else []
        case.validate_response(response, excluded_checks=[positive_data_acceptance, *ignored])

    try:
        ask()
    except Unsatisfiable:
        assert (method, mode) != ("POST", "POSITIVE")  # a GET without parameters has no invalid requests
