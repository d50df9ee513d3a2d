(** * Sinks: one more key that every query sees, with a score of its own and the value 0 *)
From Attendax Require Import Attention Sums Gradient.
Set Implicit Arguments.

(** ** The call with a sink, over numbers of any kind *)

Definition same_option {X : Type} (same : forall a b : X, {a = b} + {a <> b}) (a b : option X) : {a = b} + {a <> b}.
Proof. decide equality. Defined.

Section Definitions.
Context (A : arithmetic) (T S D V B P : Type) (same : forall a b : P, {a = b} + {a <> b}).
Local Open Scope number_scope.

(** The sink is the key [None]. Its score is the number [logit i] of the arrays. Other keys keep their scores. *)
Definition sink (logit : T -> P) (m : modifier A T S P) : modifier A T (option S) P :=
  {| modify a i j z := match j with Some j => modify m a i j z | None => a (logit i) end;
     slope a i j z := match j with Some j => slope m a i j z | None => zero A end;
     slope_in a i j z p := match j with
       | Some j => slope_in m a i j z p | None => if same (logit i) p then one A else zero A end |}.

(** No mask and no dropout reaches the sink, and its bias, the number [None], is 0. *)
Definition with_sink (logit : T -> P) (o : options A T S D V B P) : options A T (option S) D V (option B) P :=
  {| queries := queries o; keys := None :: map (fun j => Some j) (keys o); widths := widths o; columns := columns o;
     biases := None :: map (fun b => Some b) (biases o); entries := entries o;
     allowed i j := match j with Some j => allowed o i j | None => true end;
     scale := scale o; score_mod := sink logit (score_mod o);
     bias_at i j := match j with Some j => Some (bias_at o i j) | None => None end;
     same_bias := same_option (same_bias o);
     kept i j := match j with Some j => kept o i j | None => one A end |}.
Definition sink_inputs (x : inputs A T S D V B P) : inputs A T (option S) D V (option B) P := fun at_ =>
  match at_ with
  | query i d => x (query i d)
  | key (Some j) d => x (key j d) | value (Some j) c => x (value j c) | bias (Some b) => x (bias b)
  | key None _ | value None _ | bias None => zero A
  | array p => x (array p)
  end.
End Definitions.

(** ** Over the reals *)

Local Open Scope R_scope.
Section Sinks.
Context {T S D V B P : Type} (o : options reals T S D V B P) (same : forall a b : P, {a = b} + {a <> b}).
Context (logit : T -> P) (x : inputs reals T S D V B P).
Notation o' := (with_sink same logit o).
Notation x' := (sink_inputs x).

Lemma seen_with_sink i : seen o' i = None :: map (fun j => Some j) (seen o i).
Proof.
  unfold seen; cbn; f_equal.
  induction (keys o) as [|j l IH]; cbn; [easy|]; destruct (allowed o i j); cbn; now rewrite IH.
Qed.

Lemma sum_exp_with_sink i : sum_exp o' x' i = exp (x (array (logit i))) + sum_exp o x i.
Proof.
  unfold sum_exp; rewrite seen_with_sink; cbn [sum]; rewrite (sum_map (Y := option S)); in_reals; f_equal.
  unfold score; cbn; f_equal; algebra.
Qed.

(** Out and lse with a sink: the sum of exponentials has one more term, which adds nothing to the sum of out. *)
Theorem sink_takes_a_share i c :
  out o' x' i c = Σ (j ∈ seen o i) exp (score o x i j) / (exp (x (array (logit i))) + sum_exp o x i)
    * kept o i j * x (value j c) /\
  lse o' x' i = Some (ln (exp (x (array (logit i))) + sum_exp o x i)).
Proof.
  split; [|rewrite lse_is_log_sum_exp, sum_exp_with_sink; [easy | now rewrite seen_with_sink]].
  unfold out; rewrite seen_with_sink; cbn [sum]; rewrite (sum_map (Y := option S)); in_reals; cbn [sink_inputs].
  transitivity (0 + Σ (j ∈ seen o i) weight o' x' i (Some j) * kept o i j * x (value j c)); [f_equal; algebra|].
  rewrite Rplus_0_l; apply sum_ext; intros j _; rewrite weight_is_softmax, sum_exp_with_sink; reflexivity.
Qed.

(** With a sink the modifier states its true derivatives, so [backward_is_gradient] is about a call with a sink, too. *)
Theorem sink_slopes : NoDup (entries o) -> (forall i, In (logit i) (entries o)) ->
  true_slopes o (score_mod o) -> true_slopes o' (score_mod o').
Proof.
  intros N I F i [j|] a z t da dz M Z; cbn; [exact (F i j a z t da dz M Z)|].
  rewrite (sum_read same _ 1 da N (I i)); apply (derive_eq (M (logit i))); algebra.
Qed.

(** The score of a sink gets the gradient [p (dlse - delta)]. The backward sums this over the queries of a logit. *)
Theorem sink_gets g i : grad_score o' x' g i None = weight o' x' i None * (dlse g i - delta o' x' g i).
Proof.
  unfold grad_score, grad_weight; cbn [sink_inputs with_sink columns]; rewrite sum_zero; [algebra | intros; algebra].
Qed.
End Sinks.
