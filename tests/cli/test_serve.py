from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi")


@pytest.fixture
def store(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/service.db"
    monkeypatch.setenv("DEWMARK_STORE", url)
    return url


class TestTokens:
    def test_made_listed_and_revoked(self, run, store):
        made = json.loads(
            run("token", "new", "--scope", "detect", "--name", "desk", "--budget", 9, "--json").out
        )
        assert made["token"].startswith(f"dwm_{made['id']}_")
        plain = run("token", "new", "--scope", "detect-public", "--store", store).out.strip()
        listed = run("token", "list").out
        assert made["id"] in listed
        assert plain.split("_")[1] in listed
        assert made["token"] not in listed
        assert plain not in listed
        assert run("token", "revoke", made["id"]).out == f"revoked {made['id']}\n"
        rows = [json.loads(line) for line in run("token", "list", "--json").out.splitlines()]
        assert [row["revoked"] is None for row in rows] == [False, True]
        assert (rows[0]["budget"], rows[0]["scopes"], rows[0]["name"]) == (9, ["detect"], "desk")

    def test_errors_are_one_line(self, run, store):
        assert "unknown scope 'all'" in run("token", "new", "--scope", "all").error
        assert "dewmark token list" in run("token", "revoke", "nobody").error
        assert "--store must be a URL" in run("token", "list", "--store", "nonsense").error


class TestServe:
    def test_bad_options_are_reported_before_the_service_starts(self, run, host, key_file, store, tmp_path):
        assert "--detector DIR" in run("serve").error
        assert "dewmark detector export" in run("serve", "--detector", tmp_path).error
        assert (
            "--host-model needs --key" in run("serve", "--detector", tmp_path, "--host-model", "stub").error
        )
        assert "--fpr" in run("serve", "--key", key_file, "--fpr", 2).error
        assert (
            "cannot listen"
            in run("serve", "--key", key_file, "--host", "203.0.113.1", "--without-tokens").error
        )

    def test_a_public_address_requires_a_token(self, run, host, key_file, store, monkeypatch):
        refused = run("serve", "--key", key_file, "--host", "0.0.0.0").error
        assert "dewmark token new" in refused
        run("token", "new", "--scope", "detect")
        started = []
        monkeypatch.setattr(
            "dewmark.serve.supervisor.Supervisor.run", lambda self, ready: started.append(self._settings) or 0
        )
        assert run("serve", "--key", key_file, "--host", "0.0.0.0", "--port", 0).code == 0
        assert started[0].keys == (("the", str(key_file)),)

    def test_tenants_have_different_ids_and_keys(self, run, host, key_file, store, tmp_path):
        from dewmark.core.keys import Key

        keys = tmp_path / "keys"
        keys.mkdir()
        Key(bytes(32)).save(keys / "the.key")
        assert "two tenants have the id 'the'" in run("serve", "--key", key_file, "--keys", keys).error


def test_workers_receive_all_settings():
    from dewmark.serve.settings import Settings

    settings = Settings(detectors=(("a", "/x"),), host_names=("desk.example",), store="sqlite:///secret.db")
    assert Settings.from_json(settings.to_json()) == settings
    assert "secret" not in repr(settings)


def test_folders_of_detectors_are_tenants(tmp_path):
    from dewmark.serve.tenants import tenant_paths

    for name in ("acme", "beta"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "detector.json").write_text("{}")
    assert tenant_paths([str(tmp_path)]) == [(name, str(tmp_path / name)) for name in ("acme", "beta")]
    assert tenant_paths([str(tmp_path / "acme"), f"b={tmp_path}/beta"]) == [
        ("acme", str(tmp_path / "acme")),
        ("b", f"{tmp_path}/beta"),
    ]
