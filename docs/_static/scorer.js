// Search shows the page whose title is the query first, then the guides, other pages, the reference, and names of
// functions and methods.
const GUIDES = [
  "install", "what_did_my_tuning_cost", "tune_privately", "long_studies", "glossary", "audit_your_training",
  "check_your_script", "audit_a_tuning", "which_protocol", "sharp_edges", "what_to_report",
];
const QUERY = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();
var Scorer = {
  score: ([page, title, , , points]) => {
    if (title.toLowerCase() === QUERY) return points + 10;
    if (GUIDES.includes(page)) return points + 3;
    if (page.startsWith("reference/generated/")) return points - 10;
    return page.startsWith("reference/") ? points - 3 : points;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
};
