"""The smallest experiment: two steps, one after the other."""

from marin_pipeline import Artifact, Context, main, step


@step
def count_words(ctx: Context, text: str) -> int:
    (ctx.out / "words.txt").write_text("\n".join(text.split()))
    return len(text.split())


@step
def multiply(ctx: Context, count: Artifact[int], times: int) -> int:
    return count.value * times


if __name__ == "__main__":
    main(multiply(count=count_words(text="a b c"), times=2))
