module score
  use iso_c_binding
  integer(c_int), bind(c, name="score_self_node") :: score_self_node
  interface
     subroutine score_initialize() bind(c)
     end subroutine score_initialize
  end interface
end module score

program alone
  use score
  call score_initialize()
  print '(a, i0)', "node ", score_self_node
end program alone
