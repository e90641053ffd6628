// Search shows pages before the names of functions and methods.
var Scorer = {
  score: ([page, , , , points]) => (page.startsWith("reference/generated/") ? points - 10 : points),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 5, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
};
