create view scores as select question, trim(text) as answer, perplexity from 'out/recipes/pairs/scores/data/*.parquet';
-- Of the three answers to a question the likeliest is chosen, by the mean of its tokens, and the unlikeliest rejected.
copy (
  select question as prompt, arg_min(answer, perplexity) as chosen, arg_max(answer, perplexity) as rejected,
    min(perplexity) as chosen_perplexity, max(perplexity) as rejected_perplexity
  from scores group by question having chosen <> rejected order by question
) to 'out/recipes/pairs/pairs.parquet';
select prompt, chosen, rejected from 'out/recipes/pairs/pairs.parquet' limit 3;
select count(*) as pairs, round(median(chosen_perplexity), 1) as perplexity_of_chosen,
  round(median(rejected_perplexity), 1) as of_rejected from 'out/recipes/pairs/pairs.parquet';
