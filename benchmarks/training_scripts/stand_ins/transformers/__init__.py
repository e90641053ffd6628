"""A stand-in for the library transformers: a tokenizer of words."""

from typing import Any


class BertTokenizerFast:
    """Numbers words by their spelling."""

    @classmethod
    def from_pretrained(cls, name: str) -> "BertTokenizerFast":
        return cls()

    def __len__(self) -> int:
        return 64

    def __call__(
        self, texts: list[str], truncation: bool = True, max_length: int = 256
    ) -> dict[str, Any]:
        known = {"bad": 1, "good": 2} | {f"w{i}": 3 + i for i in range(40)}
        return {"input_ids": [[known[w] for w in t.split()][:max_length] for t in texts]}
