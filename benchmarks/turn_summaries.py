"""Summaries written by hand, as a model is asked to write them, to see what those cost beside those made by rules.

They are of the three runs of the session by which the turn memory was asked for, and are no output of any model.
"""

from typing import Final

from nexus.core.turns import Structured, Summaries

BY_HAND: Final = (
    Summaries(
        brief=(
            "The user wants literature on SGLT2 inhibitors and cardiovascular outcomes in type 2 diabetes. A PubMed "
            "search found 156 articles."
        ),
        detailed=(
            "The user asked for the literature on the effect of SGLT2 inhibitors on cardiovascular outcomes in type 2"
            " diabetes. PubMed was searched with the query 'SGLT2 inhibitors cardiovascular outcomes type 2 diabetes'"
            " and a limit of 200. The search returned 156 articles, published from 2008 to 2024. The assistant "
            "decided to search PubMed before any other database, because it covers most of the reviews. No filter was"
            " applied yet. The next step is to keep only systematic reviews and meta-analyses."
        ),
        structured=Structured(
            overview="The literature on SGLT2 inhibitors was searched for outcomes; 156 articles were found.",
            actions=("pubmed_search with query 'SGLT2 inhibitors cardiovascular outcomes type 2 diabetes', limit 200",),
            results=("156 articles were found.", "They were published from 2008 to 2024."),
            decisions=("PubMed is searched first, because it covers most of the reviews.",),
            next_steps=("Keep only systematic reviews and meta-analyses.",),
        ),
        source="model",
    ),
    Summaries(
        brief="15 of the 156 articles were kept, and 5 of these were downloaded. The other 10 are behind a paywall.",
        detailed=(
            "The user asked to keep the systematic reviews of the last years. filter_articles was called with the "
            "years 2018-2024 and the types systematic review and meta-analysis, which left 15 of the 156 articles. "
            "The assistant then chose to download those that are open. download was called for the PMIDs 12345678, "
            "23456789, 34567890, 45678901 and 56789012. All 5 were saved, and the other 10 are behind a paywall. It "
            "was decided to go on with these 5, and to ask for the others later."
        ),
        structured=Structured(
            overview="15 reviews were kept, and 5 of them downloaded.",
            actions=(
                "filter_articles with years 2018-2024, types systematic review and meta-analysis",
                "download of PMIDs 12345678, 23456789, 34567890, 45678901, 56789012",
            ),
            results=("15 of 156 articles are left.", "5 full texts were saved, 10 are behind a paywall."),
            decisions=("Go on with the 5 that are open, and ask for the others later.",),
            next_steps=("Extract the data of the 5 full texts.",),
        ),
        source="model",
    ),
    Summaries(
        brief=(
            "5 reviews with 45,678 patients say that SGLT2 inhibitors lower the risk of major cardiovascular events by "
            "14% (HR 0.86, 95% CI 0.80-0.93)."
        ),
        detailed=(
            "The user asked what the reviews say. extract_data was called for the 5 full texts (PMIDs 12345678, "
            "23456789, 34567890, 45678901, 56789012) with the outcome MACE. Together they report on 45,678 patients "
            "with type 2 diabetes. SGLT2 inhibitors lower the risk of major adverse cardiovascular events by 14% (HR "
            "0.86, 95% CI 0.80-0.93). The effect is the same in all 5 reviews. The quality of the reviews has not "
            "been judged yet, which is the next step."
        ),
        structured=Structured(
            overview="SGLT2 inhibitors lower the risk of major adverse cardiovascular events by 14%.",
            actions=("extract_data for 5 PMIDs (12345678, 23456789, 34567890, 45678901, 56789012), outcome MACE",),
            results=("45,678 patients in 5 reviews.", "HR 0.86, 95% CI 0.80-0.93 for MACE, the same in all reviews."),
            decisions=(),
            next_steps=("Judge the quality of each review.",),
        ),
        source="model",
    ),
)

# What a model is asked for besides: a few short statements on each turn.
INSIGHTS: Final = (
    (
        "PubMed has 156 articles on SGLT2 inhibitors and outcomes.",
        "The earliest is of 2008.",
        "No filter has been applied yet.",
    ),
    (
        "15 of 156 articles are systematic reviews since 2018.",
        "10 of them are behind a paywall.",
        "5 full texts are at hand.",
    ),
    (
        "The pooled HR for MACE is 0.86 (95% CI 0.80-0.93).",
        "All 5 reviews agree.",
        "Nobody has judged their quality.",
    ),
)
