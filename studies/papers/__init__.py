"""The tables and figures of five papers, computed: `python -m audit.reproduce`.

The library computes everything; the numbers that a paper prints are stored as data and compared
with ours. A setting that the paper does not state is an argument with a default.

To add a reproduction, write a function that returns a `Result` and add it to `REPRODUCTIONS`.
"""

from studies.papers import attacks, others, regression, svm, table3, training, xiang
from studies.papers import koskela_redberg_wang as krw
from studies.papers import papernot_steinke as ps
from studies.papers.result import Comparison, Reproduction, Result

_PS, _KRW = "Papernot & Steinke 2022", "Koskela, Redberg & Wang 2024"
_X, _HYPO, _KK = "Xiang, Wang & Wang 2024", "Wang et al. 2023", "Koskela & Kulkarni 2023"

REPRODUCTIONS: dict[str, Reproduction] = {
    "ps-fig1": Reproduction("outliers revealed by a choice", f"{_PS}, figure 1", svm.figure_1),
    "ps-fig2": Reproduction("Renyi DP, logarithmic K", f"{_PS}, figure 2", ps.figure_2),
    "ps-fig3": Reproduction("Renyi DP, one mean of K", f"{_PS}, figure 3", ps.figure_3),
    "ps-fig4": Reproduction("epsilon over E[K]", f"{_PS}, figure 4", ps.figure_4),
    "ps-fig5": Reproduction("expected quantile over epsilon", f"{_PS}, figure 5", ps.figure_5),
    "ps-fig6": Reproduction("probability of success over epsilon", f"{_PS}, figure 6", ps.figure_6),
    "ps-fig8": Reproduction("conditional sampling", f"{_PS}, figure 8", ps.figure_8),
    "krw-fig1": Reproduction("report noisy max", f"{_KRW}, figure 1", krw.figure_1),
    "krw-fig2": Reproduction("privacy profiles, geometric K", f"{_KRW}, figure 2", krw.figure_2),
    "krw-fig3": Reproduction("epsilon over geometric E[K]", f"{_KRW}, figure 3", krw.figure_3),
    "krw-fig4": Reproduction("binomial and Poisson K", f"{_KRW}, figure 4", krw.figure_4),
    "krw-fig5": Reproduction(
        "private linear regression, tuned", f"{_KRW}, figure 5", regression.figure_5
    ),
    "krw-fig6": Reproduction("DP-SGD, Poisson and geometric K", f"{_KRW}, figure 6", krw.figure_6),
    "krw-fig7": Reproduction("DP-SGD with large batches", f"{_KRW}, figure 7", krw.figure_7),
    "krw-fig8": Reproduction("tuning the noise multiplier", f"{_KRW}, figure 8", krw.figure_8),
    "x-example1": Reproduction("a cost of nearly 3 eps", f"{_X}, example 1", xiang.example_1),
    "x-table3": Reproduction("the generic bound", f"{_X}, table 3, eps_U", xiang.table_3),
    "x-table3-played": Reproduction(
        "lower bounds from the kept trials of played games",
        f"{_X}, table 3, figures 1 to 4",
        table3.played,
    ),
    "x-table4": Reproduction("two-point K", f"{_X}, table 4", xiang.table_4),
    "x-fig6": Reproduction("bounds and audit of the game", f"{_X}, figure 6", xiang.figure_6),
    "hypo-budgets": Reproduction("DP-HyPO's budgets", f"{_HYPO}, sec. 4.2", others.hypo_budgets),
    "kk-subset": Reproduction("tuning on a subset, over q", f"{_KK}, theorem", others.subset_bound),
    "ps-fig7": Reproduction(
        "accuracy over the total epsilon, trained", f"{_PS}, figure 7", training.ps_figure_7
    ),
    "hypo-training": Reproduction(
        "Gaussian process and uniform choice, trained", f"{_HYPO}, sec. 4.2", training.hypo_training
    ),
    "kk-training": Reproduction(
        "accuracy of tuning on a subset, trained", f"{_KK}, MNIST", training.kk_training
    ),
    "attacks": Reproduction("attacks on every bound", "this project", attacks.attacks),
}
"""Every reproduction by name."""

__all__ = ["REPRODUCTIONS", "Comparison", "Reproduction", "Result"]
