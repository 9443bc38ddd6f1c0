"""The stages that make texts: ``generate`` writes marked and unmarked ones, ``attack`` edits them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dewmark.decoding import Decoding
from dewmark_audit.texts import Row
from dewmark_lab.attacks.base import Attack
from dewmark_lab.evaluation.rewrites import Rewrite, check_rewrites, rewriter_quality
from dewmark_lab.experiments.outputs import Output, write_json
from dewmark_lab.experiments.recipe import AttackEntry, SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.workers import Fill, LoadedModels


def generate_texts(run: Run) -> None:
    """Write every scheme's texts and every host's unmarked ones, under each seed."""
    recipe, number = run.recipe, run.recipe.texts
    wanted: list[tuple[str, SchemeEntry | None, int, Output]] = []
    for seed in run.seeds:
        wanted += [(host, None, seed, run.unmarked(host, seed)) for host in run.hosts]
        wanted += [(entry.host, entry, seed, run.marked(entry, seed)) for entry in recipe.schemes]
    wanted = [each for each in wanted if each[-1].count() < number]
    prompts = {host: run.prompts(host, number) for host in dict.fromkeys(each[0] for each in wanted)}
    run.build_scheme_caches([entry for _, entry, *_ in wanted if entry is not None], tasks=len(wanted))
    run.fill(
        "writing texts",
        [
            Fill(
                number,
                target,
                run.batch_size,
                partial(_write, host, entry, seed, recipe.key_number(seed), prompts[host], recipe.decoding),
            )
            for host, entry, seed, target in wanted
        ],
    )


def _write(
    host: str,
    entry: SchemeEntry | None,
    seed: int,
    key: int,
    prompts: Sequence[Row],
    decoding: Decoding,
    models: LoadedModels,
    batch: range,
) -> list[Row]:
    """Complete prompts, marked by ``entry`` or not; a text's sampling seed is the same in every run."""
    bound = None if entry is None else models.scheme(entry, key)
    asked = [prompts[i] for i in batch]
    generations = models.host(host).generate(
        [prompt["text"] for prompt in asked],
        scheme=bound,
        seeds=[1_000_000 * seed + i for i in batch],
        batch_size=len(batch),
        decoding=decoding,
    )
    return [
        {
            "id": prompt["id"],
            "prompt": one.prompt,
            **({"request": prompt["request"]} if "request" in prompt else {}),
            "text": one.text,
            "tokens": one.tokens,
            "seed": one.seed,
            "scheme": one.scheme,
            "config_hash": one.config_hash,
            **({} if one.drafts is None else {"drafts": one.drafts.to_dict()}),
        }
        for prompt, one in zip(asked, generations, strict=True)
    ]


def attack_texts(run: Run) -> None:
    """Put marked, unmarked and human-written texts through every attack of the recipe."""
    run.store_human_texts()
    sources: list[tuple[Output, int]] = []
    for host in run.hosts:
        sources += [(run.unmarked(host, seed), run.recipe.texts) for seed in run.seeds]
        sources += run.all_human_texts(host)
    for entry in run.recipe.schemes:
        sources += [(run.marked(entry, seed), run.recipe.texts) for seed in run.seeds]
    tasks: list[Fill] = []
    for attack in run.recipe.attacks:
        missing = [(texts, n) for texts, n in sources if run.attacked(texts, attack).count() < n]
        _announce_cost(run, attack, missing)
        tasks += [
            Fill(
                number,
                run.attacked(texts, attack),
                run.attacks[attack.label].at_once,
                partial(_attack, texts, attack),
            )
            for texts, number in missing
        ]
    run.fill("attacking texts", tasks)
    _write_rewriters(run, sources)


def _attack(source: Output, entry: AttackEntry, models: LoadedModels, batch: range) -> list[Row]:
    """Put texts through an attack, seeded by each text's own seed; a row keeps its other fields."""
    attack = models.attack(entry)
    rows = source.read(batch.stop)[batch.start :]
    texts = [row["text"] for row in rows]
    attacked = attack.apply(texts, seeds=[row["seed"] for row in rows])
    identity = attack.identity()
    made = [
        {**row, "text": text, "attack": identity, "original_text": row["text"]}
        for row, text in zip(rows, attacked, strict=True)
    ]
    if attack.can_fail:
        checks = check_rewrites(texts, attacked, language=attack.language, length=attack.length)
        made = [{**row, "rewrite": check.to_dict()} for row, check in zip(made, checks, strict=True)]
    return made


def _write_rewriters(run: Run, sources: Sequence[tuple[Output, int]]) -> None:
    """Say how good the rewriters are: a line for each, and ``rewriters.json``."""
    found = {}
    for entry in run.recipe.attacks:
        if run.attacks[entry.label].can_fail:
            rows = [row for texts, number in sources for row in run.attacked(texts, entry).read(number)]
            quality = rewriter_quality(Rewrite(**row["rewrite"]) for row in rows)
            run.notify(f"{entry.label}: {quality}")
            found[entry.label] = quality.to_dict()
    if found:
        write_json(run.out / "rewriters.json", found)


def _announce_cost(run: Run, entry: AttackEntry, missing: Sequence[tuple[Output, int]]) -> None:
    """Tell the user what an attack will request from an endpoint, over all its texts."""
    attack = run.attacks[entry.label]
    if type(attack).plan is not Attack.plan:  # the others need no endpoint
        rows = [row for texts, number in missing for row in texts.read(number)]
        cost = attack.plan([row["text"] for row in rows], seeds=[row["seed"] for row in rows])
        if cost is not None:
            run.notify(f"{entry.label}: {cost}")
