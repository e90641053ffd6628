"""Finds the formulas in docstrings, which are plain text in code, so that the site typesets them.

A formula is a series of symbols, numbers and operators such as `1 - phi(1 - s) = e^-epsilon_0`.
Words end it.
"""

import re

_GREEK = {
    "epsilon": r"\varepsilon", "eps": r"\varepsilon", "phi": r"\varphi", "lambda": r"\lambda",
    **{name: rf"\{name}" for name in (
        "alpha", "delta", "eta", "gamma", "mu", "pi", "rho", "sigma", "tau", "theta",
    )},
}  # fmt: skip
_FUNCTIONS = {name: rf"\{name}" for name in ("exp", "int", "log", "max", "min", "sqrt", "sum")}
_WORDS = {name: rf"\mathrm{{{name}}}" for name in ("hi", "lo", "lr")}
_SYMBOLS = _GREEK | _FUNCTIONS | _WORDS | {"dx": "dx"}
_OPERATORS = {
    "<=": r"\le ",
    ">=": r"\ge ",
    "||": r"\,\|\,",
    "*": r"\cdot ",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}

_SUBSCRIPT = rf"(?:_(?:\{{[^{{}}]+\}}|hat|{'|'.join(_GREEK)}|[A-Za-z0-9])|(?<=[A-Za-z])\d)?"
_SYMBOL = rf"(?:{'|'.join(_SYMBOLS)}|[A-Za-z]){_SUBSCRIPT}(?![A-Za-z_])"
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?(?![A-Za-z_])"
_POWER = r"\^-?(?:[A-Za-z]+(?:_[A-Za-z0-9]|\d)?|\d+|(?=\())"
_TOKEN = re.compile(rf"{_SYMBOL}|{_NUMBER}|{_POWER}|<=|>=|\|\||[-+*/=<>|()\[\],'\u2019]")
_PART = re.compile(rf"(?:{_TOKEN.pattern})+")
_IS_FORMULA = re.compile(
    r"[A-Za-z]_|\^|<=|>=|\b(?:phi|[A-Z])['\u2019]?\(|\bP\[|sqrt|[\w)\]] = [\w(]"
)


def _depths(text: str) -> list[int]:
    """The number of open brackets before each character, and after the last one."""
    depths = [0]
    for at, character in enumerate(text):
        opens = character in "([" or (character == "<" and text[at + 1 : at + 2].isalpha())
        closes = character in ")]" or (character == ">" and text[at - 1 : at].isalnum())
        depths.append(depths[-1] + opens - closes)
    return depths


def _is_formula(text: str) -> bool:
    depths = _depths(text)
    return bool(
        _IS_FORMULA.search(text)
        and depths[-1] == 0
        and min(depths) >= 0
        and not re.match(r"[-+*/=,|^]", text)
        and not re.search(rf"[-+*/=,<^(]$|[<>]=$|\b(?:{'|'.join(_FUNCTIONS)})$", text)
    )


def _series(text: str) -> list[list[tuple[int, int]]]:
    """Neighbouring parts that may belong to one formula, each as (start, end)."""
    series: list[list[tuple[int, int]]] = [[]]
    for word in re.finditer(r"\S+", text):
        part = re.sub(r"(?:(?<=[\w)])-(?:z?C?DP)?)?[.;:,]*$", "", word[0])
        after = word[0][len(part) :]
        if _PART.fullmatch(part) is None or part in ("a", "A", "I"):
            series.append([])
            continue
        series[-1].append((word.start(), word.start() + len(part)))
        is_in_brackets = _depths(text[series[-1][0][0] : word.end()])[-1] > 0
        if after and not (after == "," and is_in_brackets):
            series.append([])
    return [one for one in series if one]


def find_formulas(text: str) -> list[tuple[int, int, str]]:
    r"""The formulas of a sentence: start, end and LaTeX of each.

    Example:
        >>> text = "a mean of phi(1 - s) and e^-epsilon_0, for s <= 1"
        >>> [formula for _, _, formula in find_formulas(text)]
        ['\\varphi(1 - s)', 'e^{-\\varepsilon_{0}}', 's \\le 1']
    """
    found = []
    for parts in _series(text):
        first = 0
        while first < len(parts):
            for last in range(len(parts), first, -1):
                start, end = parts[first][0], parts[last - 1][1]
                if _is_formula(text[start:end]):
                    found.append((start, end, _latex(text[start:end])))
                    first = last - 1
                    break
            first += 1
    return found


def _symbol(token: str) -> str:
    name, _, subscript = token.partition("_")
    if not subscript and name[-1].isdigit():
        name, subscript = name[:-1], name[-1]
    base = _SYMBOLS.get(name, name)
    if subscript == "hat":
        return rf"\hat{{{base}}}"
    return f"{base}_{{{_latex(subscript.strip('{}'))}}}" if subscript else base


def _argument(text: str, at: int) -> tuple[str, int]:
    """What a root or a power applies to, without its brackets, and where it ends."""
    start = at + (text[at] == " ")
    if text[start] == "(":
        end = start + _depths(text[start:]).index(0, 1)
        return text[start + 1 : end - 1], end
    token = _TOKEN.match(text, start)
    assert token is not None
    return token[0], token.end()


def _exponent(power: str) -> str:
    if re.fullmatch(_SYMBOL, power):
        return _symbol(power)
    return rf"\mathrm{{{power}}}" if power.isalpha() else power


def _latex(text: str) -> str:
    pieces, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:  # a space
            pieces.append(text[at])
            at += 1
            continue
        word, at = token[0], token.end()
        if word == "sqrt":
            argument, at = _argument(text, at)
            pieces.append(rf"\sqrt{{{_latex(argument)}}}")
        elif word in ("^", "^-"):
            argument, at = _argument(text, at)
            pieces.append(f"^{{{word[1:]}{_latex(argument)}}}")
        elif word[0] == "^":
            power = word.lstrip("^-")
            pieces.append(f"^{{{word[1 : -len(power)]}{_exponent(power)}}}")
        elif re.fullmatch(_SYMBOL, word):
            symbol = _symbol(word)
            pieces.append(
                symbol + " " if symbol[1:].isalpha() and text[at : at + 1].isalnum() else symbol
            )
        elif word == "<" and text[at : at + 1].isalpha():
            pieces.append(r"\langle ")
        elif word == ">" and text[at - 2 : at - 1].isalnum():
            pieces.append(r"\rangle ")
        else:
            pieces.append(_OPERATORS.get(word, word))
    return re.sub(r"  +", " ", "".join(pieces)).strip()
