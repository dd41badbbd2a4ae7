create view texts as select * from 'out/recipes/rewrite/data/*.parquet';
select id, document, text from texts order by id limit 2;
select sum(num_output_tokens) as tokens, sum(num_rounds) as passes_of_the_model,
  round(1 + sum(num_accepted_tokens) / sum(num_rounds), 2) as tokens_a_pass from texts;
