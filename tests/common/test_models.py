"""Who uses the base model gets the files that fetch_model described, or an error."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from stages.common.errors import PawlError
from stages.common.files import sha256_file
from stages.common.models import base_model, date_of, fixed_arguments, with_template, writes_date


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    files = {"config.json": {"bytes": 2, "sha256": sha256_file(folder / "config.json")}}
    (tmp_path / "models" / "base.json").write_text(
        json.dumps({"path": "models/base", "files": files})
    )
    return tmp_path


def test_an_untouched_model_is_given(root: Path) -> None:
    described, folder = base_model(root)
    assert folder == root / "models" / "base"
    assert list(described["files"]) == ["config.json"]


@pytest.mark.parametrize("content", ["{ }", "[]", None])
def test_a_file_changed_in_place_is_refused(root: Path, content: str | None) -> None:
    path = root / "models" / "base" / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(PawlError, match="missing" if content is None else "has changed"):
        base_model(root)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"path": "models/base"}'])
def test_a_broken_description_is_refused(root: Path, content: str) -> None:
    (root / "models" / "base.json").write_text(content)
    with pytest.raises(PawlError):
        base_model(root)


def test_a_missing_description_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="missing") as error:
        base_model(tmp_path)
    assert "dvc repro" in error.value.fix


PUBLISHED = {
    "llama": (
        '{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%-'
        " endif %}Today Date: {{ date_string }} {{ messages[0]['content'] }}"
    ),
    "gpt_oss": (
        "{%- macro head() -%}Current date: {{ strftime_now('%Y-%m-%d') }}\n{%- endmacro -%}{{"
        " head() }} {{ messages[0]['content'] }}"
    ),
    "smollm3": (
        '{%- set today = strftime_now("%d %B %Y") -%}Today Date: {{ today }} {{'
        ' messages[0]["content"] }}'
    ),
    "an odd one": "\n  {{ strftime_now('%A, %-d.%-m., %H:%M') }} {{ messages[0].content }}",
}
"""How the published ones use the clock."""


def dated(folder: Path, template: str, day: str = "2024-07-26", inline: bool = False) -> Path:
    """models/ with a base whose template writes today's date; `inline`: as older folders hold it,
    among the tokenizer's settings.
    """
    base = folder / "models/base"
    base.mkdir(parents=True)
    (base / "tokenizer.json").write_text("{}")
    (base / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "x"} | ({"chat_template": template} if inline else {}))
    )
    if not inline:
        (base / "chat_template.jinja").write_text(template)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in base.iterdir()
    }
    (folder / "models/base.json").write_text(
        json.dumps({"path": "models/base", "files": files, "date": day})
    )
    return folder


def rendered(folder: Path) -> str:
    """As transformers renders it, for the trainer and for both engines."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = (folder / "chat_template.jinja").read_text()
    return str(
        render_jinja_template([[{"role": "user", "content": "hi"}]], chat_template=template)[0][0]
    )


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_template_that_writes_todays_date_renders_the_same_tomorrow(
    tmp_path: Path, name: str, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Tomorrow":
            return cls(2031, 2, 3)

    monkeypatch.setattr(chat_template_utils, "datetime", Tomorrow)
    _, folder = base_model(dated(tmp_path, PUBLISHED[name], inline=inline))
    wanted = {
        "llama": "Today Date: 26 Jul 2024 hi",
        "gpt_oss": "Current date: 2024-07-26 hi",
        "smollm3": "Today Date: 26 July 2024 hi",
        "an odd one": "\n  Friday, 26.7., 00:00 hi",
    }
    assert rendered(folder) == wanted[name]
    assert "chat_template" not in json.loads((folder / "tokenizer_config.json").read_text()), (
        "loaders would take either"
    )
    assert (folder / "tokenizer.json").resolve() == tmp_path / "models/base/tokenizer.json", (
        "no second copy of the files"
    )
    _, again = base_model(tmp_path)
    assert again == folder and list(folder.parent.iterdir()) == [folder]


def test_another_date_is_another_prompt_and_no_date_changes_nothing(tmp_path: Path) -> None:
    _, one = base_model(dated(tmp_path / "one", PUBLISHED["llama"]))
    _, other = base_model(dated(tmp_path / "other", PUBLISHED["llama"], day="2025-01-02"))
    assert (one / "chat_template.jinja").read_text() != (
        other / "chat_template.jinja"
    ).read_text(), "so their fingerprints differ"
    assert (date_of(one), date_of(other)) == ("2024-07-26", "2025-01-02")
    plain = tmp_path / "one/models/base"
    assert writes_date(plain) and with_template(plain, "") == plain and date_of(plain) == ""


def test_arguments_written_into_a_template_render_as_if_they_were_given(tmp_path: Path) -> None:
    template = (
        "{% macro a() %}{{ mode }}{% endmacro %}{{ a() }} {{ think is defined }} {% if think %}on{%"
        " else %}off{% endif %} {{ none_ }}"
    )
    base = dated(tmp_path, template) / "models/base"
    folder = with_template(
        base, fixed_arguments({"mode": "a\"b'\n{{", "think": False, "none_": None}), tmp_path
    )
    assert rendered(folder) == "a\"b'\n{{ True off None"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "processor_config.json"])
def test_a_model_that_wants_code_of_its_own_is_refused_before_anything_is_run(
    root: Path, name: str
) -> None:
    path = root / "models/base" / name
    path.write_text('{"auto_map": {"AutoTokenizer": ["own.Tokenizer", null]}}')
    files = {name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)}}
    (root / "models/base.json").write_text(json.dumps({"path": "models/base", "files": files}))
    with pytest.raises(PawlError, match="auto_map") as refused:
        base_model(root)
    assert refused.value.code == 3 and name in refused.value.where


def test_a_hub_model_is_found_in_whatever_cache_this_machine_has(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    described = json.loads((root / "models/base.json").read_text())
    (root / "models/base.json").write_text(
        json.dumps(described | {"source": "hub", "path": "base"})
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root / "models"))
    assert base_model(root)[1] == root / "models/base"
