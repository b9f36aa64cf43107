"""Which tests prove each case of the project's collection, and what is left to say where they do not prove all of it.

A list for people: `tests.cases.test_coverage` holds it to the tests that there are. Names of tests are those of pytest,
without parameters; the tables' tests have the ids of their cases.
"""

# Every case of the collection.
IDS = (
    *(
        f"shape-{number:03d}"
        for number in (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 20, 21, 24, 25, 27, 28)
    ),
    *(f"shape-{number:03d}" for number in (30, 32, 33, 35, 36, 40)),
    *(f"json-{number:03d}" for number in (1, 2, 5, 6, 8, 9, 10)),
    *(f"model-{number:03d}" for number in (1, 3, 4)),
    *(f"enc-{number:03d}" for number in (1, 3, 4)),
    *(f"asset-{number:03d}" for number in (2, 4, 5)),
    *(f"inj-{number:03d}" for number in (2, 3, 4, 5)),
    *(f"len-{number:03d}" for number in (1, 2, 3, 6)),
    "body-001",
    *(f"img-{number:03d}" for number in (1, 2, 4, 5, 6, 8, 9, 12, 13)),
    "vid-001",
    *(f"num-{number:03d}" for number in (1, 2, 4, 5, 7, 8, 9, 10)),
    *(f"ops-{number:03d}" for number in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)),
    *(f"cache-{number:03d}" for number in (1, 3, 4, 5, 8, 9, 10, 11, 12)),
    *(f"tp-{number:03d}" for number in (2, 3)),
)

# Those with requests in the tables: exact status and body, in this process, over a socket, and the text ones on the engine.
IN_TABLES = frozenset(
    case_id
    for case_id in IDS
    if case_id.startswith(("shape-", "json-", "enc-", "asset-", "inj-", "img-", "vid-"))
    or case_id in ("model-001", "model-003", "len-001", "len-002", "num-004", "num-005", "num-008", "num-009")
) - {"img-009"}

CASES, CONDITIONS = "tests/cases/test_cases.py::", "tests/cases/test_conditions.py::"
APP, SERVER, BODY = (
    "tests/serving/test_app.py::",
    "tests/serving/test_server.py::",
    "tests/serving/test_request_body.py::",
)
PROMPT, CONTROL = "tests/serving/test_prompt.py::", "tests/serving/test_control_tokens.py::"
PROMPT_TEXT, LIMITS = "tests/serving/test_prompt_text.py::", "tests/serving/test_prompt_limits.py::"
IMAGES, REMOTE = "tests/serving/test_media_images.py::", "tests/serving/test_media_remote.py::"
PROCESSING, METRICS = "tests/serving/test_media_processing.py::", "tests/serving/test_metrics.py::"
SDK, ADMISSION = "tests/clients/test_typesafe_sdk_errors.py::", "tests/serving/test_admission.py::"
ENGINE, CHUNKS = "tests/engine/test_default.py::", "tests/engine/test_chunks.py::"
SERVICE = "tests/engine/test_service.py::"
SMALL_POOLS, MEDIA = "tests/engine/test_small_pools.py::", "tests/engine/test_media.py::"
TENSOR_PARALLEL, HOOKS = "tests/engine/test_tensor_parallel.py::", "tests/model_plugin/test_hook_functions.py::"
UP, UP_ENGINE = "tests/launch/test_up.py::", "tests/launch/test_up_engine.py::"
FAULTS = "tests/engine/test_faults.py::"

# Tests outside the tables.
TESTS: dict[str, tuple[str, ...]] = {
    "shape-002": (PROMPT_TEXT + "test_null_and_empty_descriptions_are_different_prompts",),
    "shape-004": (PROMPT_TEXT + "test_absent_and_null_sides_of_a_noul_are_told_apart",),
    "shape-018": (CASES + "test_shape_018_composed_and_decomposed_names_are_two_options",),
    "shape-021": (LIMITS + "test_what_exceeds_the_limit_without_the_state_is_refused_with_what_to_shrink",),
    "shape-036": (PROMPT + "test_equals_the_reference",),
    "model-001": (CASES + "test_model_001_every_listed_name_is_answered_as_the_served_one",),
    "model-004": (CASES + "test_model_004", "tests/clients/test_typesafe_sdk.py::test_models"),
    "enc-001": ("tests/clients/test_typesafe_sdk.py::test_long_bodies_come_as_zstd_and_mean_the_same",),
    "enc-003": (
        BODY + "test_the_memory_that_a_bomb_takes_is_bounded",
        BODY + "test_others_get_their_turn_while_a_body_is_decoded",
    ),
    "enc-004": ("tests/serving/test_content_encoding.py::test_a_body_cut_short_is_broken_wherever_it_is_cut",),
    "asset-004": (SERVICE + "test_assets_of_typesafe_s_sdk", "tests/clients/test_typesafe_sdk.py::test_assets"),
    "inj-002": (CONTROL + "test_only_the_prompt_s_own_texts_hold_control_tokens",),
    "inj-003": (CONTROL + "test_beside_media_an_exact_media_token_is_refused",),
    "inj-004": (CONTROL + "test_every_text_is_read_as_it_was_sent",),
    "inj-005": (CONTROL + "test_forged_schema_text_in_the_state_moves_no_span",),
    "len-001": (
        CONDITIONS + "test_len_001_a_state_is_cut_where_that_is_asked_for_and_said_how_far",
        SERVICE + "test_a_state_that_is_cut",
    ),
    "len-003": (
        CONDITIONS + "test_len_003_the_limit_is_exact",
        ENGINE + "test_the_longest_prompt_is_answered_and_one_token_more_is_refused",
    ),
    "len-006": (
        HOOKS + "TestValidation::test_the_limit",
        CHUNKS + "test_a_record_is_answered_as_by_the_reference_and_again",
    ),
    "body-001": (
        SERVER + "test_a_body_over_the_limit_is_refused_and_the_connection_stays_usable",
        BODY + "test_a_body_over_the_limit_is_read_no_further",
        BODY + "test_limits_are_exact",
    ),
    "img-001": (
        CONDITIONS + "test_img_001_equal_pixels_are_equally_many_tokens_in_every_format",
        SERVICE + "test_an_image_in_each_format",
    ),
    "img-002": (IMAGES + "test_animations_are_refused",),
    "img-004": (
        IMAGES + "test_bombs_take_no_memory_of_the_process",
        "tests/serving/test_media_sources.py::test_no_message_holds_the_payload",
    ),
    "img-005": (IMAGES + "test_a_bomb_is_refused_from_its_header",),
    "img-006": (
        REMOTE + "test_not_public",
        REMOTE + "test_no_connection_if_any_address_is_not_public",
        REMOTE + "test_a_name_that_moves_home_is_refused_at_the_redirect",
        REMOTE + "test_a_redirect_elsewhere_is_refused",
        REMOTE + "test_the_limit_on_bytes_is_exact",
        REMOTE + "test_a_host_that_is_stuck_is_given_up",
    ),
    "img-008": (
        CONDITIONS + "test_img_008_four_images_of_4_megapixels_where_four_are_the_limit",
        IMAGES + "test_limits_name_themselves_and_the_value",
    ),
    "img-009": (CONDITIONS + "test_img_009_exif_orientation",),
    "vid-001": (
        PROCESSING + "test_time_stamps_count_in_the_whole_video",
        SERVICE + "test_a_list_of_frames",
    ),
    "num-001": (CASES + "test_num_001",),
    "num-002": (CASES + "test_num_002", CASES + "test_num_002_score"),
    "num-007": (
        CASES + "test_num_007_one_request_without_finite_scores_fails_alone",
        APP + "test_a_failed_warm_up_is_fatal",
        METRICS + "test_an_engine_failure_is_counted_and_its_request_is_no_answer",
    ),
    "num-008": (ENGINE + "test_num_008_a_neutral_id_changes_nothing",),
    "num-009": (ENGINE + "test_num_009_other_questions_move_an_answer_unless_it_is_isolated",),
    "num-010": (
        "tests/engine/test_bfloat16.py::test_a_request_is_answered_alike_alone_among_31_others_and_from_the_cache",
        CHUNKS + "test_chunk_edges_move_through_the_spans",
    ),
    "ops-001": (
        APP + "test_readiness_waits_for_short_long_and_many_options",
        CONDITIONS + "test_ops_001_the_warm_up_shows_an_image_where_media_are_served",
    ),
    "ops-003": (
        CONDITIONS + "test_ops_003_health_is_200_while_the_longest_prompts_are_answered",
        FAULTS + "test_probes_are_answered_while_the_longest_prompts_run_back_to_back",
    ),
    "ops-004": (
        FAULTS + "test_a_killed_scheduler_fails_what_is_in_flight_and_ends_the_server",
        UP_ENGINE + "test_a_killed_scheduler_ends_the_server_within_10_seconds",
        APP + "test_a_dead_engine_ends_readiness_and_liveness_and_is_reported_once",
    ),
    "ops-005": (
        FAULTS + "test_sigterm_with_64_in_flight_loses_none",
        APP + "test_draining_refuses_new_requests_but_not_the_one_in_flight",
        UP + "test_a_request_in_flight_is_answered_before_sigterm_ends_the_server",
    ),
    "ops-006": (
        SERVER + "test_a_client_that_leaves_frees_its_place",
        ENGINE + "test_clients_that_leave_harm_nobody",
        SMALL_POOLS + "test_ops_006_200_clients_leave_after_50_ms_20_times",
    ),
    "ops-007": (
        FAULTS + "test_a_deadline_that_the_queue_would_miss_is_refused_and_the_queue_is_answered",
        SDK + "test_a_full_queue_is_503_and_asked_again_when_it_said",
        SDK + "test_a_queue_that_stays_full_is_a_typed_error",
        SDK + "test_a_rate_limit_is_429_and_waiting_as_long_as_it_says_is_enough",
        ADMISSION + "test_a_full_queue_refuses",
        ADMISSION + "test_a_deadline_that_other_work_would_miss_is_refused_at_once",
    ),
    "ops-008": (
        SDK + "test_ops_008_no_invalid_request_is_tried_twice",
        METRICS + "test_retries_are_counted_by_the_clients_account",
    ),
    "ops-009": (
        CONDITIONS + "test_ops_009_without_a_known_key",
        CONDITIONS + "test_ops_009_with_a_known_key",
        SERVER + "test_jevcompat_with_keys",
        SERVICE + "test_without_a_key_nothing_is_answered",
    ),
    "ops-010": (
        METRICS + "test_counters_after_known_requests",
        METRICS + "test_keys_media_and_cached_tokens",
        "tests/serving/test_engine_metrics.py::test_nothing_of_an_earlier_run_is_read",
        "tests/engine/test_metrics.py::test_a_scraped_server_under_load",
    ),
    "ops-011": (
        CONDITIONS + "test_ops_011_64_at_once_with_255_options_get_the_answer_of_one",
        ENGINE + "test_16_clients_with_255_options_are_answered_as_one_would_be",
    ),
    "ops-012": (
        SMALL_POOLS + "test_more_than_the_pools_hold_waits_its_turn",
        SMALL_POOLS + "test_an_evicted_state_is_computed_again_and_cached_again",
    ),
    "ops-013": (CONDITIONS + "test_ops_013_idle_connections_live_longer_than_in_the_sdk_s_pool",),
    "cache-001": (ENGINE + "test_other_questions_about_a_known_state_compute_only_themselves",),
    "cache-003": (ENGINE + "test_a_hit_equals_a_miss_at_states_that_end_around_the_grid",),
    "cache-004": (ENGINE + "test_hits_misses_and_partial_hits_together_equal_the_reference_in_any_order",),
    "cache-005": (SMALL_POOLS + "test_asking_leaving_flushing_and_evicting_change_no_answer_and_lose_no_slot",),
    "cache-008": (
        MEDIA + "test_different_media_share_nothing",
        MEDIA + "test_equal_first_pictures_share_nothing_past_a_second_that_differs",
        "tests/engine/test_sglang_serve.py::test_images_that_begin_alike_are_different_images",
        PROCESSING + "test_different_pictures_have_different_digests",
        CONDITIONS + "test_img_009_exif_orientation",
        SERVICE + "test_other_pixels_share_nothing",
    ),
    "cache-009": (
        ENGINE + "test_a_key_that_changes_with_every_request_ends_the_shared_prefix_where_it_stands",
        METRICS + "test_keys_media_and_cached_tokens",
    ),
    "cache-010": (
        ENGINE + "test_equal_states_under_different_salts_share_nothing",
        APP + "test_the_engine_is_told_where_the_state_ends_and_whose_it_is",
        SERVICE + "test_tenants_share_nothing_and_the_keys_of_one_share_all",
    ),
    "cache-011": (
        CHUNKS + "test_a_record_is_answered_as_by_the_reference_and_again",
        CHUNKS + "test_chunk_edges_move_through_the_spans",
        "tests/model_plugin/test_pooler.py::test_chunks_of_any_size_equal_the_whole",
    ),
    "cache-012": (CHUNKS + "test_chunk_edges_move_through_the_spans",),
    "tp-002": (TENSOR_PARALLEL + "test_a_record_is_answered_as_by_the_reference_cold_and_cached",),
    "tp-003": (TENSOR_PARALLEL + "test_what_cannot_be_right_is_refused_at_start",),
}

# What of a case the tests do not show, and why. Where another outcome was chosen than the collection's first, the case in
# the table says why.
REASONS: dict[str, str] = {
    "enc-003": "4 KB of zstd cannot stand for 4 GiB, which takes 128 KiB even in the smallest blocks: both sizes are sent.",
    "inj-005": "How often a forged schema sways an answer is a property of the weights, and those here are random.",
    "body-001": "Bodies a little over a small limit, declared or not, are refused by the same code as one of 512 MiB.",
    "num-007": "A server that fails again and again stays ready: one request's state cannot be told from broken weights, and "
    "whoever could send it would take the server out. Broken weights fail the warm-up, and failures are counted.",
    "num-009": "Measured on random releases, and published for them; no trained release was run here.",
    "num-010": "32 requests in BF16, not 200; with chunks in FP32, where the answers are equal to 1e-5.",
    "ops-001": "The container image is built nowhere yet, so nothing has started in it without a compiler.",
    "ops-007": "How fast refusals are at 3 times the capacity is measured by benchmarks.overload, not asserted in a test.",
    "ops-010": "The front is one process, so there is nothing to sum; its engine's figures come in files of this run alone.",
    "ops-011": "64 at once on the front, 16 on the real engine, which is enough for several batches of it.",
    "ops-013": "The server's keep-alive is held to be longer than the client's; nobody waits for 10 minutes.",
    "cache-001": "With a state of 1,480 tokens; 4,096 are in benchmarks.prefix_sharing.",
    "cache-011": "Chunks of 64, 100, 512, the default size and none, up to 2,000 tokens; at the default size up to 65,536.",
    "tp-003": "Four ranks for two heads, as the releases of the tests are small: refused at start, with the reason.",
}
