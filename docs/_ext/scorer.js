/* The order of search results: an exact name first, then guides, then the reference, then errata and lists. */
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (/^(errata|figures|official_code|other_libraries|bibliography|changelog|contributing)$/.test(page))
      return score - 5;
    if (page === "reference/index" || page.startsWith("results/")) return score - 2;
    return page.includes("/") ? score : score + 6;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
