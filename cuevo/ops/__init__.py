"""The operations, and the one way of a call: arguments, plan, launch.

`forward`, `backward` and `product` are the three calls. Each hands its arguments to an `Operation`
(`operation`), which looks up the plan of such calls or has it made: `attention_problem` and
`gemm_problem` check the arguments and state the problem, `dispatch` chooses the kernel variant and
its configuration, `packing` says which operands are packed first, and a `PlanBuilder` (`plan`)
collects results, workspace and launches. Who calls one of the three imports what that one needs.
"""
