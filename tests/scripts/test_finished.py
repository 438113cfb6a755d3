"""Long runs resume only from measurements of the same code and settings."""

from experiments.measures import finished
from experiments.measures.finished import Finished


def test_parts_are_kept_for_a_run_of_the_same_settings_and_code(tmp_path, monkeypatch):
    path, code = tmp_path / "parts.json", tmp_path / "code.py"
    code.write_text("1")
    Finished(path, ["digits", 3], [code]).add("a", {"b": [1, 2]})
    assert Finished(path, ["digits", 3], [code]).parts == {"a": {"b": [1, 2]}}
    assert Finished(path, ["digits", 4], [code]).parts == {}
    with monkeypatch.context() as patch:
        # This simulates a change of the code of the packages.
        patch.setattr(finished, "packages", lambda: [code])
        assert Finished(path, ["digits", 3], [code]).parts == {}
    with monkeypatch.context() as patch:
        patch.setattr("experiments.cli.versions", lambda: {"jax": "9"})
        assert Finished(path, ["digits", 3], [code]).parts == {}
    code.write_text("2")
    assert Finished(path, ["digits", 3], [code]).parts == {}


def test_a_run_without_a_file_keeps_its_parts_in_memory():
    run = Finished(None, [])
    run.add("a", 1)
    assert run.parts == {"a": 1}
