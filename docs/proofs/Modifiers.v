(** * Score modifiers: the derivatives that each states are its true ones *)
From Attendax Require Import Attention Sums Gradient.
Set Implicit Arguments.

(** ** The modifiers of [attendax.scores], over numbers of any kind *)

Section Modifiers.
Context (A : arithmetic) (T S P : Type) (same : forall a b : P, {a = b} + {a <> b}).
Local Open Scope number_scope.

Definition no_modifier : modifier A T S P :=
  {| modify _ _ _ z := z; slope _ _ _ _ := one A; slope_in _ _ _ _ _ := zero A |}.

(** [cap * tanh (z / cap)], with a constant [cap]. *)
Definition softcap (cap : A) : modifier A T S P :=
  {| modify _ _ _ z := cap * tanh_of A (z / cap);
     slope _ _ _ z := one A - tanh_of A (z / cap) * tanh_of A (z / cap);
     slope_in _ _ _ _ _ := zero A |}.

(** [z - a_n * |i + offset - j|]. Here [head i] says where the number [a_n] for the head [n] of a query stands, the
    slope of ALiBi, and [distance i j] is [|i + offset - j|]. *)
Definition alibi (head : T -> P) (distance : T -> S -> A) : modifier A T S P :=
  {| modify a i j z := z - a (head i) * distance i j;
     slope _ _ _ _ := one A;
     slope_in _ i j _ p := if same (head i) p then zero A - distance i j else zero A |}.

(** [z + table[n, c]], with the head [n] and the clipped distance [c] of the pair. Here [entry i j] says which number
    of the table that is. *)
Definition relative_bias (entry : T -> S -> P) : modifier A T S P :=
  {| modify a i j z := z + a (entry i j);
     slope _ _ _ _ := one A;
     slope_in _ i j _ p := if same (entry i j) p then one A else zero A |}.

(** One modifier after another, the first one first. *)
Definition compose (first second : modifier A T S P) : modifier A T S P :=
  let between a i j z := modify first a i j z in
  {| modify a i j z := modify second a i j (between a i j z);
     slope a i j z := slope second a i j (between a i j z) * slope first a i j z;
     slope_in a i j z p := slope second a i j (between a i j z) * slope_in first a i j z p
                           + slope_in second a i j (between a i j z) p |}.
End Modifiers.

(** ** Over the reals these are their derivatives *)

Local Open Scope R_scope.
Section True.
Context {T S D V B P : Type} (o : options reals T S D V B P) (same : forall a b : P, {a = b} + {a <> b}).
Notation modifier := (modifier reals T S P).
Lemma derive_tanh (z : R) : is_derive tanh z (1 - tanh z * tanh z).
Proof.
  assert (cosh z <> 0) by (unfold cosh; pose proof (exp_pos z); pose proof (exp_pos (- z)); lra).
  eapply derive_eq; [eapply (derive_divided (f := sinh) (g := cosh)); [| |easy]; apply is_derive_Reals|].
  - apply derivable_pt_lim_sinh.
  - apply derivable_pt_lim_cosh.
  - unfold tanh; fractions.
Qed.

Local Opaque tanh.

(** No modifier at all: the derivative is 1. *)
Theorem no_modifier_slopes : true_slopes o (no_modifier reals T S P).
Proof. intros i j a z t da dz _ Z; apply (derive_eq Z); cbn; rewrite sum_zero; intros; algebra. Qed.

(** Softcap: tanh' = 1 - tanh². *)
Theorem softcap_slopes (cap : R) : cap <> 0 -> true_slopes o (softcap reals T S P cap).
Proof.
  intros N i j a z t da dz _ Z; cbn; rewrite sum_zero by (intros; algebra).
  assert (Y : is_derive (fun t => z t / cap) t (dz / cap)) by (derive_with ltac:(exact Z); fractions).
  pose proof (derive_of (f := fun t => z t / cap) (derive_tanh _) Y) as W; derive_with ltac:(exact W); fractions.
Qed.

(** ALiBi: the derivative in [z] is 1, and in the slope of the query's head it is [-distance]. *)
Theorem alibi_slopes head distance : NoDup (entries o) -> (forall i, In (head i) (entries o)) ->
  true_slopes o (alibi reals same head distance).
Proof. intros N I i j a z t da dz M Z; cbn; rewrite sum_read by easy; derive_with eauto; algebra. Qed.

(** Relative bias: the derivative in [z] is 1, and in the number of the table that the pair reads it is 1. *)
Theorem relative_bias_slopes entry : NoDup (entries o) -> (forall i j, In (entry i j) (entries o)) ->
  true_slopes o (relative_bias reals same entry).
Proof. intros N I i j a z t da dz M Z; cbn; rewrite sum_read by easy; derive_with eauto; algebra. Qed.

(** One after another: the chain rule. *)
Theorem compose_slopes (first second : modifier) :
  true_slopes o first -> true_slopes o second -> true_slopes o (compose first second).
Proof.
  intros F G i j a z t da dz M Z; pose proof (F i j a z t da dz M Z) as Y; apply (G i j a _ t da _ M) in Y.
  apply (derive_eq Y); cbn; rewrite Rmult_plus_distr_l, sum_times, Rplus_assoc, <- sum_plus.
  f_equal; [algebra | apply sum_ext; intros; algebra].
Qed.
End True.

(** ** Activations: two that have a derivative everywhere *)

(** SiLU, [z / (1 + exp (-z))]. *)
Theorem silu_slope z : is_derive (fun z => z / (1 + exp (- z))) z
  (/ (1 + exp (- z)) * (1 + z * (1 - / (1 + exp (- z))))).
Proof. pose proof (exp_pos (- z)); auto_derive; [lra | field; lra]. Qed.

(** GELU by tanh, with any [c]; the usual one is the square root of 2 / pi. *)
Theorem gelu_tanh_slope (c z : R) : let u z := c * (z + 0.044715 * z ^ 3) in
  is_derive (fun z => z / 2 * (1 + tanh (u z))) z
    (/ 2 * (1 + tanh (u z)) + z / 2 * ((1 - tanh (u z) * tanh (u z)) * (c * (1 + 3 * 0.044715 * z ^ 2)))).
Proof.
  intro u; assert (U : is_derive u z (c * (1 + 3 * 0.044715 * z ^ 2))).
  { unfold u; auto_derive; [easy | simpl; field]. }
  derive_with ltac:(exact (derive_of (derive_tanh (u z)) U)); fractions.
Qed.
