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
            "cannot listen" in run("serve", "--key", key_file, "--host", "1.1.1.1", "--without-tokens").error
        )

    def test_a_public_address_requires_a_token(self, run, host, key_file, store, monkeypatch):
        refused = run("serve", "--key", key_file, "--host", "0.0.0.0").error
        assert "dewmark token new" in refused
        run("token", "new", "--scope", "detect")
        started = []
        monkeypatch.setattr(
            "dewmark_desk.supervisor.Supervisor.run", lambda self, ready: started.append(self._settings) or 0
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
    from dewmark_desk.settings import Settings

    settings = Settings(detectors=(("a", "/x"),), host_names=("desk.example",), store="sqlite:///secret.db")
    assert Settings.from_json(settings.to_json()) == settings
    assert "secret" not in repr(settings)


def test_folders_of_detectors_are_tenants(tmp_path):
    from dewmark_desk.tenants import tenant_paths

    for name in ("acme", "beta"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "detector.json").write_text("{}")
    assert tenant_paths([str(tmp_path)]) == [(name, str(tmp_path / name)) for name in ("acme", "beta")]
    assert tenant_paths([str(tmp_path / "acme"), f"b={tmp_path}/beta"]) == [
        ("acme", str(tmp_path / "acme")),
        ("b", f"{tmp_path}/beta"),
    ]


class TestConfiguration:
    @pytest.fixture
    def settings(self, run, host, key_file, store, monkeypatch):
        """Run serve with these arguments, and return the settings that it would start with."""
        monkeypatch.setattr("dewmark_desk.supervisor.listen", lambda *_: _Socket())
        started = []
        monkeypatch.setattr(
            "dewmark_desk.supervisor.Supervisor.run", lambda self, ready: started.append(self._settings) or 0
        )

        def start(*arguments):
            result = run("serve", "--key", key_file, *arguments)
            assert result.code == 0, result.err
            return started[-1]

        return start

    def test_command_line_wins_over_environment_and_that_over_the_file(self, settings, tmp_path, monkeypatch):
        file = tmp_path / "serve.toml"
        file.write_text(
            'port = 9001\nworkers = 3\nlog-queries = true\nlog_days = 5\nname = ["a.example", "b.example"]\n'
            'provider = "Acme"\nset = "k=5"\n'
        )
        monkeypatch.setenv("DEWMARK_SERVE_WORKERS", "4")
        monkeypatch.setenv("DEWMARK_SERVE_FPR", "0.001")
        found = settings("--config", file, "--port", 9002)
        assert (found.port, found.workers, found.fpr) == (9002, 4, 0.001)
        assert (found.log_queries, found.log_days, found.provider) == (True, 5.0, "Acme")
        assert found.host_names == ("a.example", "b.example")
        assert found.scheme_settings == ("k=5",)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("prot = 1", "'prot'"),
            ("port = [1, 2]", "one value"),
            ("[port]\na = 1", "not a table"),
            ("port = ", "not TOML"),
            ("config = 'x'", "'config'"),
        ],
    )
    def test_mistakes_in_the_file_are_one_line(self, run, key_file, tmp_path, text, message):
        file = tmp_path / "serve.toml"
        file.write_text(text)
        assert message in run("serve", "--key", key_file, "--config", file).error
        assert "cannot read" in run("serve", "--config", tmp_path / "none").error

    def test_the_store_may_be_a_secret_file(self, settings, tmp_path, monkeypatch):
        monkeypatch.delenv("DEWMARK_STORE")
        (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/other.db\n")
        monkeypatch.setenv("DEWMARK_STORE_FILE", str(tmp_path / "url"))
        assert settings().store == f"sqlite:///{tmp_path}/other.db"

    def test_a_missing_signing_key_is_reported_at_once(self, run, host, key_file, store, tmp_path):
        assert "no signing key" in run("serve", "--key", key_file, "--signer", tmp_path / "x.pem").error


class _Socket:
    def getsockname(self):
        return ("127.0.0.1", 9)


class TestLog:
    def test_find_export_and_expire(self, run, store, tmp_path):
        from dewmark_desk.query_log import QueryLog
        from dewmark_desk.store import Store

        text = "The old bridge over the river was built of stone by the people of the town in a dry summer."
        opened = Store(store)
        answer = {"tenant": "acme", "verdict": "marked"}
        QueryLog(opened).write(request="r1", token="abc", endpoint="detect", texts=[text], answers=[answer])
        opened.close()
        file = tmp_path / "letter.txt"
        file.write_text(text.replace("dry", "hot"))
        found = run("log", "find", file)
        assert "token abc  detect  marked  similarity 0." in found.out
        assert json.loads(run("log", "find", file, "--json").out)["request"] == "r1"
        out = tmp_path / "log.jsonl"
        assert run("log", "export", "--out", out).code == 0
        (row,) = [json.loads(line) for line in out.read_text().splitlines()]
        assert row["token"] == "abc"
        assert "bridge" not in out.read_text()
        assert out.stat().st_mode & 0o777 == 0o600
        assert run("log", "expire", "--days", 0).out == "deleted 1 row\n"
        assert run("log", "find", file).out == "nobody asked about a text like this one\n"
