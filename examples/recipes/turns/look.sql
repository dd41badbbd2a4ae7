create view sentences as
select id, result->>'sentence' as sentence, (result->>'turns')::int as turns,
  json_array_length(result, '$.missing') = 0 as is_right
from (select id, result::json as result from 'out/recipes/turns/data/*.parquet');
select id, sentence, turns from sentences where is_right order by turns desc, id limit 4;
select count(*) filter (is_right and turns = 1) as right_at_once, count(*) filter (is_right) as right_in_the_end,
  count(*) as sentences from sentences;
