(** * Sums of real numbers, and how they move *)
From Coq Require Export List Reals Lra Permutation Setoid Morphisms.
From Coquelicot Require Export Coquelicot.
From Attendax Require Export Attention.
Export ListNotations.
Set Implicit Arguments.
Local Open Scope R_scope.

(** The real numbers of Coq's library, as a kind of numbers. *)
Canonical reals : arithmetic := {|
  number := R; zero := 0; one := 1; add := Rplus; sub := Rminus; mul := Rmult; div := Rdiv; maximum := Rmax;
  e_to := exp; log := ln; tanh_of := tanh; root := sqrt |}.

(** Write what is computed with [reals] in the library's own words. *)
Ltac in_reals := cbv beta;
  change (add reals) with Rplus in *; change (sub reals) with Rminus in *; change (mul reals) with Rmult in *;
  change (div reals) with Rdiv in *; change (e_to reals) with exp in *; change (log reals) with ln in *;
  change (tanh_of reals) with tanh in *; change (root reals) with sqrt in *;
  change (zero reals) with 0 in *; change (one reals) with 1 in *; change (number reals) with R in *.

(** Prove an equation of real numbers by the laws of a ring, or of a field; or of two sums, term by term. *)
Ltac algebra := in_reals; apply Rminus_diag_uniq; ring.
Ltac fractions := in_reals; apply Rminus_diag_uniq; field; try lra.
Ltac termwise := apply sum_ext; intros; try algebra.

(** ** Laws of sums: the first lets Coq rewrite the terms of a sum in place *)

Global Instance sum_terms {A X} (l : list X) : Proper (pointwise_relation X eq ==> eq) (@sum A X l).
Proof. intros f g E; termwise; apply E. Qed.

(** The other laws follow by induction. *)
Notation pairs := list_prod.
Ltac step := cbn [sum app concat map filter list_prod].
Ltac by_induction l := induction l as [|a l IH]; step; first [algebra | rewrite IH; algebra | rewrite <- IH; algebra].

Section Sums.
Context {X Y : Type}.
Implicit Types (l : list X) (f g : X -> R) (r : R).
Lemma sum_plus l f g : Σ (a ∈ l) (f a + g a) = sum l f + sum l g.
Proof. by_induction l. Qed.
Lemma sum_minus l f g : Σ (a ∈ l) (f a - g a) = sum l f - sum l g.
Proof. by_induction l. Qed.
Lemma sum_times l f r : r * sum l f = Σ (a ∈ l) r * f a.
Proof. by_induction l. Qed.
Lemma sum_times_r l f r : sum l f * r = Σ (a ∈ l) f a * r.
Proof. by_induction l. Qed.
Lemma sum_map l (h : X -> Y) (f : Y -> R) : sum (map h l) f = Σ (a ∈ l) f (h a).
Proof. by_induction l. Qed.
Lemma sum_app l l' f : sum (l ++ l') f = sum l f + sum l' f.
Proof. by_induction l. Qed.
Lemma sum_concat (ls : list (list X)) f : sum (concat ls) f = Σ (l ∈ ls) sum l f.
Proof. induction ls as [|l ls IH]; step; [|rewrite sum_app, IH]; easy. Qed.
Lemma sum_filter l (p : X -> bool) f : sum (filter p l) f = Σ (a ∈ l) if p a then f a else 0.
Proof. induction l as [|a l IH]; step; [|destruct (p a); step; rewrite ?IH]; algebra. Qed.
Lemma sum_permutation l l' f : Permutation l l' -> sum l f = sum l' f.
Proof. induction 1; step; rewrite ?IHPermutation; try algebra; congruence. Qed.
Lemma sum_zero l f : (forall a, In a l -> f a = 0) -> sum l f = 0.
Proof. intro H; rewrite (sum_ext l f (fun a => 0 * f a)), <- sum_times; [|intros; rewrite H by easy]; algebra. Qed.

Lemma sum_positive l f : (forall a, 0 < f a) -> l <> [] -> 0 < sum l f.
Proof.
  intros H N; destruct l as [|a l]; [easy|]; clear N; step; in_reals; specialize (H a) as Ha.
  enough (0 <= sum l f) by lra; induction l as [|b l IH]; step; in_reals; [|specialize (H b)]; lra.
Qed.

(** If a list has [a] once, a sum in which only the term of [a] is not 0 is this term. *)
Lemma sum_read (same : forall a b : X, {a = b} + {a <> b}) l a r f :
  NoDup l -> In a l -> Σ (b ∈ l) (if same a b then r else 0) * f b = r * f a.
Proof.
  induction 1 as [|b l B N IH]; [easy|]; step; intros I; destruct (same a b) as [<- | E].
  - rewrite sum_zero; [algebra|]; intros c C; destruct (same a c) as [<-|]; [easy | algebra].
  - destruct I as [-> | I]; [easy|]; rewrite IH by easy; algebra.
Qed.
End Sums.

Lemma sum_swap {X Y} (l : list X) (m : list Y) (f : X -> Y -> R) :
  Σ (a ∈ l) Σ (b ∈ m) f a b = Σ (b ∈ m) Σ (a ∈ l) f a b.
Proof. induction l as [|a l IH]; step; [symmetry; now apply sum_zero | now rewrite IH, <- sum_plus]. Qed.
Lemma sum_pairs {X Y} (l : list X) (m : list Y) (f : X * Y -> R) :
  sum (pairs l m) f = Σ (a ∈ l) Σ (b ∈ m) f (a, b).
Proof. induction l as [|a l IH]; step; [|rewrite sum_app, sum_map, IH]; easy. Qed.

(** ** Exponentials *)

Lemma exp_minus (u v : R) : exp (u - v) = exp u / exp v.
Proof. unfold Rminus, Rdiv; now rewrite exp_plus, exp_Ropp. Qed.

(** Note that every exponential in sight is positive. *)
Ltac exponentials := repeat match goal with
  |- context [exp ?u] => lazymatch goal with _ : 0 < exp u |- _ => fail | _ => pose proof (exp_pos u) end end.

(** ** How things move: [is_derive f t df] says that [f] has the derivative [df] at [t] *)

Section Derivatives.
Context {f g h : R -> R} {t df dg dh : R}.
Lemma derive_eq df' : is_derive f t df -> df = df' -> is_derive f t df'.
Proof. now intros F <-. Qed.
Lemma derive_ext : is_derive f t df -> (forall t, f t = g t) -> is_derive g t df.
Proof. intros F E; now apply is_derive_ext with f. Qed.
Lemma derive_constant r : is_derive (fun _ : R => r) t 0.
Proof. apply (is_derive_const (V := R_NormedModule)). Qed.
Lemma derive_same : is_derive (fun t => t) t 1.
Proof. apply (is_derive_id (K := R_AbsRing)). Qed.
Lemma derive_plus : is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t + g t) t (df + dg).
Proof. exact (is_derive_plus f g t df dg). Qed.
Lemma derive_minus : is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t - g t) t (df - dg).
Proof. exact (is_derive_minus f g t df dg). Qed.
Lemma derive_times : is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t * g t) t (df * g t + f t * dg).
Proof. intros F G; apply (is_derive_mult f g t df dg F G Rmult_comm). Qed.
Lemma derive_divided : is_derive f t df -> is_derive g t dg -> g t <> 0 ->
  is_derive (fun t => f t / g t) t ((df * g t - f t * dg) / g t ^ 2).
Proof. apply is_derive_div. Qed.
Lemma derive_of : is_derive h (f t) dh -> is_derive f t df -> is_derive (fun t => h (f t)) t (dh * df).
Proof. intros H F; rewrite Rmult_comm; apply (is_derive_comp h f t dh df H F). Qed.
Lemma derive_exp : is_derive f t df -> is_derive (fun t => exp (f t)) t (exp (f t) * df).
Proof. rewrite Rmult_comm; exact (is_derive_comp exp f t _ df (is_derive_exp (f t))). Qed.
Lemma derive_ln : is_derive f t df -> 0 < f t -> is_derive (fun t => ln (f t)) t (df * / f t).
Proof. intros F P; refine (is_derive_comp ln f t _ df _ F); apply is_derive_Reals, derivable_pt_lim_ln, P. Qed.
End Derivatives.

Lemma derive_sum {X} (l : list X) (f : R -> X -> R) (df : X -> R) t :
  (forall a, In a l -> is_derive (fun t => f t a) t (df a)) -> is_derive (fun t => sum l (f t)) t (sum l df).
Proof.
  induction l as [|a l IH]; intro H; [exact (derive_constant 0)|].
  apply (derive_plus (f := fun t => f t a) (g := fun t => sum l (f t))); [|apply IH; intros]; apply H; cbn; auto.
Qed.

(** Find a derivative by these rules and by the [facts] at hand. It is left to prove that it is the one asked for. *)
Ltac derive_with facts := in_reals; eapply derive_eq; [repeat lazymatch goal with
  | |- is_derive (fun _ => ?r) _ _ => exact (derive_constant r)
  | |- is_derive (fun t => t) _ _ => exact derive_same
  | |- is_derive (fun t => sum ?l (@?f t)) _ _ => eapply (derive_sum l f); intros ? _
  | |- is_derive (fun t => @?f t + @?g t) _ _ => eapply (derive_plus (f := f) (g := g))
  | |- is_derive (fun t => @?f t - @?g t) _ _ => eapply (derive_minus (f := f) (g := g))
  | |- is_derive (fun t => @?f t * @?g t) _ _ => eapply (derive_times (f := f) (g := g))
  | |- is_derive (fun t => @?f t / @?g t) _ _ => eapply (derive_divided (f := f) (g := g))
  | |- is_derive (fun t => exp (@?f t)) _ _ => eapply (derive_exp (f := f))
  | |- is_derive (fun t => ln (@?f t)) _ _ => eapply (derive_ln (f := f))
  | |- is_derive _ _ _ => solve [facts]
  | _ => lra
  end |].
