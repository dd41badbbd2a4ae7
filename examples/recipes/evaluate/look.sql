create view picked as select id, country, trim(text, ' .') as picked, answer, list_max(candidate_probabilities) as share
from 'out/recipes/evaluate/data/*.parquet';
select id, country, picked, answer, round(share, 2) as share from picked order by id limit 4;
select count(*) filter (picked = answer) as right, count(*) as questions,
  round(avg((picked = answer)::int), 3) as accuracy, 0.25 as by_chance from picked;
