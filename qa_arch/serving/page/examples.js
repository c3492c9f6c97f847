// Passages written for this page, each with a question; the last one is not answered by its passage.
export const EXAMPLES = [
  {
    name: "A lighthouse",
    context: "The lighthouse on Skerry Point was lit for the first time on 3 October 1868. Its keeper, Maren Holt, rowed out from the village every evening until a causeway was laid eleven years later. When the lamp was changed from oil to electricity in 1931, the light could be seen from twenty-two miles away, and the last keeper moved to the mainland.",
    question: "How far could the electric light be seen?",
  },
  {
    name: "A recipe",
    context: "For the dumplings, knead the flour with two eggs and a pinch of salt, then let the dough rest under a damp cloth for half an hour. Roll it out thinly. The filling is made of boiled potatoes, fried onions 🧅 and fresh cheese; some families in the valley add mint. Cook them in salted water until they float.",
    question: "What do some families add to the filling?",
  },
  {
    name: "A river",
    context: "The Orle rises in the Grey Hills and flows south for 140 kilometres before it joins the Tamber below the town of Vask. Salmon returned to it in 2004, after the weir at Lower Vask had been taken down. In spring the meadows along its banks are flooded, and the road to Vask is closed for some weeks.",
    question: "Why did the salmon return?",
  },
  {
    name: "Without an answer",
    context: "The town library of Bellmoor opened in a former tram depot in 1988. It lends books, musical instruments and, since last year, garden tools. On Thursdays it stays open until ten in the evening.",
    question: "How many books does the library own?",
  },
];
