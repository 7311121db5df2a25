"""A comparison for papers and repositories: report.md, and table.tex for LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsuv_plugin.experiments.measures import BY_NAME, Measure
from fedsuv_plugin.experiments.report.cells import (
    against,
    against_title,
    best,
    bold,
    cell,
    compared,
    escaped,
    explanation,
    heading,
    introduction,
    known,
    seed_cell,
    settings,
    target,
)
from fedsuv_plugin.experiments.results import Results, VariantResult, name_of
from fedsuv_plugin.tables import markdown

SEED_BY_SEED = ("final_accuracy", "rounds_to_target")


# ---- Markdown


def report_md(results: Results, figures: Sequence[Path], folder: Path) -> str:
    """The whole report as Markdown; of the figures, those that Markdown can show."""
    pictures = [path for path in figures if path.suffix == ".png"]
    parts = [
        f"# {_md(results.title)}: a comparison",
        _md(introduction(results)),
        *_listed("Notes", [f"- {_md(note)}" for note in results.notes]),
        "## Results",
        f"{explanation(results)} `summary.csv` has every measure, `runs.csv` every run.",
        _short_table(results),
        *_against(results),
        *_seed_by_seed(results),
        *_listed("Figures", [_figure(path, folder) for path in pictures], apart=True),
        *_settings(results),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(title: str, items: Sequence[str], apart: bool = False) -> list[str]:
    return [f"## {title}", ("\n\n" if apart else "\n").join(items)] if items else []


def _short_table(results: Results) -> str:
    shown = known(results, short=True)
    best_of = {measure.name: best(measure, results) for measure in shown}

    def show(measure: Measure, variant: VariantResult) -> str:
        text = cell(measure, variant)
        return f"**{text}**" if variant.label in best_of[measure.name] else text

    rows = [
        [_md(v.label), str(len(v.finished)), *(show(measure, v) for measure in shown)]
        for v in results.variants
    ]
    return markdown(["variant", "seeds", *map(heading, shown)], rows)


def _against(results: Results) -> Iterator[str]:
    """Each measure of the short table, seed by seed against the reference, and in words."""
    measures = compared(results)
    if not measures:
        return
    yield f"## {_md(against_title(results))}"
    yield (
        "Mean of the differences of each seed with its 95 % interval; seeds won, lost and tied; "
        "p of the paired t-test, adjusted for the number of variants (Benjamini and Hochberg)."
    )
    head = ["variant", "difference", "95 % interval", "won, lost, tied", "p", "in words"]
    for measure in measures:
        yield f"### {measure.heading}{', percentage points' if measure.share else ''}"
        rows = [
            [_md(v.label), *against(measure, paired)]
            for v in results.variants
            if (paired := v.against.get(measure.name))
        ]
        yield markdown(head, rows)


def _seed_by_seed(results: Results) -> Iterator[str]:
    yield "## Seed by seed"
    for measure in (BY_NAME[name] for name in SEED_BY_SEED):
        if measure.to_target and results.target is None:
            continue
        rows = []
        for v in results.variants:
            by_seed = {run.seed: seed_cell(measure, run) for run in v.runs}
            rows.append([_md(v.label), *(by_seed.get(seed, "") for seed in results.seeds)])
        yield f"### {heading(measure)}"
        yield markdown(["variant", *(f"seed {seed}" for seed in results.seeds)], rows)


def _figure(path: Path, folder: Path) -> str:
    return f"![{path.stem.replace('_', ' ')}]({path.relative_to(folder).as_posix()})"


def _settings(results: Results) -> Iterator[str]:
    if results.settings:
        yield "## Settings"
        yield "Keys that all finished runs have in common. Run directories have paths in full."
        rows = [[f"`{key}`", _md(value)] for key, value in settings(results)]
        yield markdown(["key", "value"], rows)


def _md(text: str) -> str:
    """Text in which no character is markup; underscores within words are none."""
    return escaped(" ".join(text.split()), lambda c: f"\\{c}" if c in "\\|*`<[" else c)


# ---- LaTeX

TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def table_tex(results: Results) -> str:
    """The short table as a float of LaTeX, for the package booktabs; as wide as a page of text."""
    shown = known(results, short=True)
    head = " & ".join(["variant", *(_stacked(_halves(heading(m)), "b") for m in shown)])
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        "  \\footnotesize",
        "  \\setlength{\\tabcolsep}{4pt}",
        f"  \\caption{{{_tex(_caption(results))}}}",
        f"  \\label{{tab:{''.join(c if c.isalnum() else '-' for c in results.title)}}}",
        f"  \\begin{{tabular}}{{@{{}}l{'r' * len(shown)}@{{}}}}",
        "    \\toprule",
        f"    {head} \\\\",
        *(f"    {row}" for row in _tex_rows(results, shown)),
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_rows(results: Results, shown: Sequence[Measure]) -> Iterator[str]:
    """The variants; those under a condition have it above them."""
    best_of = {measure.name: best(measure, results) for measure in shown}
    for condition, variants in results.conditions.items():
        yield "\\midrule"
        if condition:
            yield f"\\multicolumn{{{len(shown) + 1}}}{{@{{}}l}}{{\\emph{{{_tex(condition)}}}}} \\\\"
        for v in variants:
            cells = [_tex(name_of(v.keys))]
            for measure in shown:
                text = _stacked(cell(measure, v, brief=True).partition("; ")[::2], "t")
                cells.append(f"\\textbf{{{text}}}" if v.label in best_of[measure.name] else text)
            yield " & ".join(cells) + " \\\\"


def _stacked(lines: Sequence[str], first: str) -> str:
    """Lines of a cell one below the other, aligned with their row by the top or the bottom one."""
    found = [_tex(line) for line in lines if line]
    if len(found) == 1:
        return found[0]
    content = " \\\\ ".join(found)
    return f"\\begin{{tabular}}[{first}]{{@{{}}r@{{}}}}{content}\\end{{tabular}}"


def _halves(text: str) -> Sequence[str]:
    """
    >>> _halves("virtual s to target")
    ['virtual s', 'to target']
    """
    spaces = [i for i, character in enumerate(text) if character == " "]
    middle = min(spaces, key=lambda i: abs(i - len(text) / 2), default=len(text))
    return [text[:middle], text[middle + 1 :]]


def _caption(results: Results) -> str:
    seeds = ", ".join(map(str, results.seeds))
    text = f"{results.title}, seeds {seeds}"
    if results.target is not None:
        text += f", target accuracy {target(results)}"
    return f"{text}. {explanation(results)} {bold(results)}"


def _tex(text: str) -> str:
    return escaped(text, lambda c: TEX.get(c, c))
