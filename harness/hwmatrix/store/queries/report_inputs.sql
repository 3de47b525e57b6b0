-- The kinds of input that the models of a run were given: the number of models, of those whose inputs are known, of those that were given
-- more than text, of those that ran only their text path, and of those that could not be built and were executed nowhere.
WITH models AS (
    SELECT
        model,
        bool_or(inputs IS NOT NULL) AS known,
        coalesce(bool_or(text_path AND level IS NOT NULL), false) AS text_path,
        coalesce(bool_or(list_has_any(inputs, ['image', 'video', 'audio']) AND level IS NOT NULL), false) AS more,
        bool_or(status = 'factory_error') AND NOT bool_or(level IS NOT NULL) AS unmade
    FROM report_cells
    GROUP BY model
)
SELECT
    count(*) AS models,
    count(*) FILTER (WHERE known) AS known,
    count(*) FILTER (WHERE more AND NOT text_path) AS given_more,
    count(*) FILTER (WHERE text_path) AS text_path,
    count(*) FILTER (WHERE unmade) AS unmade
FROM models;
